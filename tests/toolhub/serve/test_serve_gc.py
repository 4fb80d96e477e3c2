"""The garbage collector of a hub that serves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import gc, os, signal, sys
from pathlib import Path
import anyio
from toolhub import Config
from toolhub.serve.run import BindSettings, serve

def on_ready(addresses, frontends):
    print(gc.get_freeze_count() > 50_000, gc.get_threshold()[0] > 10_000, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

config = Config.model_validate({"hub": {"state_dir": sys.argv[1]}})
bind = BindSettings(host=None, port=0, uds=Path(sys.argv[1], "hub.sock"), token=None, allow_inline=False)
anyio.run(lambda: serve(config, bind, on_ready=on_ready))
"""


def test_a_serving_hub_spares_the_garbage_collector_its_modules(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True True\n", done.stderr
