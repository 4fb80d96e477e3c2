"""An agent that uses a tool, prints the pids of its hub and its server, and then waits to be killed.

With the argument `forked`, it is a forked child that uses the hub, and its parent that waits.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from miroflow_agents import config, echo_params

import toolhub
from toolhub.miroflow import ToolManager
from toolhub.miroflow.hub_command import hub_commands
from toolhub.miroflow.private_hub import private_hubs

# Ends what a test meant to kill but did not.
LIFETIME_S = 120.0


async def pids(manager: ToolManager) -> list[int]:
    server: dict[str, Any] = await manager.execute_tool_call("echo", "pid", {})
    async with toolhub.connect(private_hubs.url(hub_commands())) as hub:
        return [(await hub.statistics())["pid"], int(server["result"])]


def main() -> None:
    manager = ToolManager([config("echo", echo_params())])
    found = asyncio.run(pids(manager))
    if sys.argv[1:] == ["forked"]:
        if (child := os.fork()) == 0:
            print(*found, *asyncio.run(pids(manager)), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
    else:
        print(*found, flush=True)
    time.sleep(LIFETIME_S)


if __name__ == "__main__":
    main()
