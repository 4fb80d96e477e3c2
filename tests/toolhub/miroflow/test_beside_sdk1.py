"""The drop-in in the environment of an agent that needs mcp<2."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import miroflow_sdk1
from miroflow_agents import FIXTURES, agent

from testbed import third_party

AGENT = """
import asyncio, json, sys
import mcp
from importlib.metadata import version
from mcp.client.stdio import stdio_client
from toolhub.miroflow import ToolManager

def params(*env):
    return mcp.StdioServerParameters(command=sys.executable, args=[sys.argv[1]], env=dict(env))

async def main():
    manager = ToolManager([{"name": "echo", "params": params(("A", "1"))}])
    (entry,) = await manager.get_all_tool_definitions()
    answer = await manager.execute_tool_call("echo", "env", {"name": "A"})
    print(json.dumps([version("mcp").split(".")[0], entry["tools"][0]["name"], answer["result"]]))

asyncio.run(main())
"""


def test_it_works_with_real_parameters_of_sdk_1_and_a_hub_from_another_environment() -> None:
    hub = Path(sys.executable).parent / "toolhub"
    done = agent(
        AGENT,
        str(FIXTURES / "echo.py"),
        python=str(third_party.mcp1_python()),
        PYTHONPATH=miroflow_sdk1.search_path(),
        TOOLHUB_COMMAND=str(hub),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["1", "echo", "1"]


def test_without_a_hub_the_error_says_how_to_get_one() -> None:
    script = AGENT.replace('["tools"][0]["name"]', '["tools"][0]["error"]').replace('["result"]', '["error"]')
    done = agent(
        script,
        str(FIXTURES / "echo.py"),
        python=str(third_party.mcp1_python()),
        PYTHONPATH=miroflow_sdk1.search_path(),
        PATH=os.defpath,
        TOOLHUB_TOLERANT="1",
    )
    assert done.returncode == 0, done.stderr
    for text in json.loads(done.stdout)[1:]:
        assert "uv tool install 'toolhub-runtime[hub]'" in text
