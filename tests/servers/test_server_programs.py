"""Each server as users start it: `python -m toolhub_servers.<name>`, over stdio."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from calling import answer
from mcp import Client
from mcp.client.stdio import StdioServerParameters

A_TOOL_OF = {
    "clock": "get_current_time",
    "files": "list_files",
    "python": "create_sandbox",
    "sqlite": "tables",
    "task_planner": "list_todos",
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", A_TOOL_OF)
async def test_a_server_answers_over_stdio(name: str, tmp_path: Path) -> None:
    program = StdioServerParameters(command=sys.executable, args=["-m", f"toolhub_servers.{name}"], cwd=tmp_path)
    with anyio.fail_after(30):
        async with Client(program) as client:
            assert await answer(client, A_TOOL_OF[name])


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("name", A_TOOL_OF)
def test_a_server_explains_itself_and_its_options(name: str) -> None:
    done = run(f"toolhub_servers.{name}", "--help")
    assert done.returncode == 0
    help_text = " ".join(done.stdout.split())
    assert f"python -m toolhub_servers.{name}" in help_text and "MCP over stdio" in help_text


def test_an_unusable_option_ends_the_program_with_one_sentence() -> None:
    done = run("toolhub_servers.files", "--root", "/no/such/place")
    assert (done.returncode, done.stdout) == (2, "")
    assert "root '/no/such/place' is not a directory" in done.stderr
