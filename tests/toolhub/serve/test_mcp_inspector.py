"""The MCP gateway seen by the inspector, the reference client in TypeScript."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from served_hub import ServedHub

from testbed import third_party

INSPECTOR = "@modelcontextprotocol/inspector@0.15.0"


@pytest.fixture(scope="module")
def inspector() -> list[str]:
    """The command line of the inspector, installed once into the test cache."""
    directory = third_party.versioned("inspector", [INSPECTOR])
    prefix = third_party.ensure(directory, lambda home: third_party.npm_install(home, INSPECTOR))
    return [third_party.npx(), "--prefix", str(prefix), "--no-install", "--offline", "mcp-inspector", "--cli"]


def inspect(inspector: list[str], hub: ServedHub, *options: str) -> Any:
    """What the inspector prints, which is the result as JSON."""
    done = subprocess.run(
        [*inspector, f"{hub.http}/mcp", "--transport", "http", *options], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_inspector_lists_and_calls_tools(inspector: list[str], hub: ServedHub) -> None:
    listed = inspect(inspector, hub, "--method", "tools/list")
    assert "echo" in [tool["name"] for tool in listed["tools"]]
    options = ("--method", "tools/call", "--tool-name", "echo", "--tool-arg", "text=hello")
    assert inspect(inspector, hub, *options)["content"] == [{"type": "text", "text": "hello"}]
