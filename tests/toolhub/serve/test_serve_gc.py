"""The memory of a hub that serves: what the garbage collector visits, and what requests leave behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from toolhub.serve.openapi import CallTool, OpenTask

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


@pytest.mark.quick
def test_a_body_leaves_no_string_values_behind() -> None:
    """A kept string takes 16 KiB of the allocator's memory away from everything of another size."""
    first, second = (OpenTask.model_validate_json(b'{"id": "an-id", "labels": {"a": "b-c"}}') for _ in range(2))
    assert first == second and first.id is not second.id and first.labels["a"] is not second.labels["a"]
    body = b'{"server": "s", "tool": "t", "arguments": {"text": "a text"}}'
    one, other = (CallTool.model_validate_json(body).arguments["text"] for _ in range(2))
    assert one == other and one is not other
