"""The tool calls of such a run without MiroThinker: the same calls in the same order, to servers of the same names.

    python -m benchmarks.mirothinker.loop mirothinker|toolhub URL RESULT TURNS

RESULT: as that of `agent`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from benchmarks.mirothinker.agent import watch
from benchmarks.mirothinker.services import ANSWER, SCRAPE, SEARCH, scripted_call
from benchmarks.task.variants import SpawnTools
from toolhub.miroflow import ToolManager

SERVER = Path(__file__).with_name("server.py")


async def main(manager: str, url: str, result: str, turns: str) -> None:
    commands = {name: [sys.executable, str(SERVER), name, url] for name in (SEARCH, SCRAPE, "tool-python")}
    configs = [{"name": name, "params": {"command": argv[0], "args": argv[1:]}} for name, argv in commands.items()]
    tools = ToolManager(configs) if manager == "toolhub" else SpawnTools(commands)
    found = watch(tools)
    began = time.perf_counter()
    await tools.get_all_tool_definitions()
    for turn in range(int(turns)):
        call = scripted_call(turn)
        told = await tools.execute_tool_call(call.server, call.tool, dict(call.arguments))
        if f"number {turn}" not in told["result"] and "forty-two" not in told["result"]:
            raise RuntimeError(f"turn {turn} was answered with {told}")
    found["seconds"] = time.perf_counter() - began
    if isinstance(tools, ToolManager):
        await tools.aclose()
    Path(result).write_text(json.dumps({**found, "answer": ANSWER}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
