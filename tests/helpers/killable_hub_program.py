"""A hub in a process of its own, to be killed.

    python killable_hub_program.py STATE_DIR SPECS [--fork] [--early]

SPECS is a JSON list of servers. Starts all of them in one task, prints a line of JSON (its pid, the servers' pids), and
waits. With --fork a child of it, made by a plain fork, keeps copies of all its descriptors; its pid is in the line too.
With --early the line comes before the servers are started.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import anyio

from toolhub import Config, Hub, ServerSpec
from toolhub.config.models import HubSettings


async def main() -> None:
    specs = [ServerSpec(**fields) for fields in json.loads(sys.argv[2])]
    config = Config(servers={spec.name: spec for spec in specs}, hub=HubSettings(state_dir=Path(sys.argv[1])))
    async with Hub(config) as hub, hub.task("t") as task:
        if "--early" not in sys.argv:
            assert await task.warm() == {}
        told = {"hub": os.getpid(), "servers": [slot.pid for slot in task.statistics().slots]}
        if "--fork" in sys.argv:
            told["fork"] = os.fork()
            if told["fork"] == 0:
                time.sleep(300)
                os._exit(0)
        print(json.dumps(told), flush=True)
        await task.warm()
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
