"""Recording and replaying with real programs: an agent with the drop-in, MCP clients, the commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_clients import MODES, mcp_client
from miroflow_agents import FIXTURES, HERE
from served_hub import TOOLHUB, environment, eventually, new_task, open_task, served, stub, write_config

# An agent with a loop of its own, as MiroThinker's: each call depends on the answer before. Every answer of a live
# server would be another one: it is the number of a process.
AGENT = """
import asyncio, json, os, sys
from miroflow_agents import Params, config
from toolhub.miroflow import ToolManager

async def main():
    manager = ToolManager([config("tool-echo", Params(os.environ["SERVER"], ["-S", os.environ["SCRIPT"]], {}))])
    told = [await manager.get_all_tool_definitions()]
    for turn in range(6):
        tool = ("pid", "counter", "structured")[turn % 3]
        arguments = {"text": told[-1]["result"]} if turn == 5 else {}
        told.append(await manager.execute_tool_call("tool-echo", "echo" if turn == 5 else tool, arguments))
    await manager.aclose()
    print(json.dumps({"told": told, "answer": told[1]["result"] + told[-1]["result"]}))

asyncio.run(main())
"""


def toolhub(*arguments: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TOOLHUB, *arguments],
        cwd=folder,
        env=environment({"PYTHONPATH": str(HERE), "XDG_STATE_HOME": str(folder / "state"), **env}),
        capture_output=True,
        text=True,
        timeout=180,
    )


def test_an_agents_own_loop_gets_the_same_bytes_and_gives_the_same_answer_twice(tmp_path: Path) -> None:
    program = ["--", sys.executable, "-c", AGENT]
    there = {"SERVER": sys.executable, "SCRIPT": str(FIXTURES / "echo.py")}
    recorded = toolhub("record", "tape", *program, folder=tmp_path, **there)
    assert recorded.returncode == 0, recorded.stderr
    assert "exchanges recorded: 6 (tape)" in recorded.stderr
    gone = {"SERVER": "/nonexistent/python", "SCRIPT": "gone.py"}
    for _ in range(2):
        replayed = toolhub("replay", "tape", *program, folder=tmp_path, **gone)
        assert replayed.returncode == 0, replayed.stderr
        assert "exchanges replayed: 6 (tape)" in replayed.stderr
        assert replayed.stdout == recorded.stdout
    (file,) = (tmp_path / "tape").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600 and (tmp_path / "tape").stat().st_mode & 0o777 == 0o700
    shown = toolhub("cassette", "tape", folder=tmp_path).stdout.splitlines()
    assert len(shown) == 7 and shown[1].startswith("   1 tool-echo/pid {} -> ok, ")


def test_a_program_that_asks_something_else_fails_although_it_ends_well(tmp_path: Path) -> None:
    write_config(tmp_path, servers={"echo": stub()})
    call = ["--", sys.executable, "-m", "toolhub", "call", "echo", "echo"]
    assert toolhub("record", "tape", *call, '{"text": "a"}', folder=tmp_path).returncode == 0
    again = toolhub("record", "tape", *call, '{"text": "a"}', folder=tmp_path)
    assert again.returncode == 2 and "tape holds recordings already" in again.stderr
    forgiving = ["--", "sh", "-c", f'{sys.executable} -m toolhub call echo echo \'{{"text": "b"}}\' || true']
    missed = toolhub("replay", "tape", *forgiving, folder=tmp_path)
    assert missed.returncode == 1 and "not in the recording: 1" in missed.stderr
    assert '\'text\' was "a" and is now "b"' in missed.stderr
    assert toolhub("replay", "tape", "--", "sh", "-c", "exit 7", folder=tmp_path).returncode == 7
    unknown = toolhub("replay", "tape", "--", "no-such-program", folder=tmp_path)
    assert unknown.returncode == 2 and "cannot run 'no-such-program'" in unknown.stderr


async def use(client: Client) -> list[Any]:
    """What a client sees of a server: its tools, a result, progress, a tool's own failure."""
    seen: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    seen.append((await client.list_tools()).model_dump(mode="json"))
    for tool, arguments in (("pid", {}), ("progress", {"steps": 3}), ("image", {}), ("fail", {"message": "no"})):
        result = await client.call_tool(tool, arguments, progress_callback=on_progress)
        seen.append(result.model_dump(mode="json"))
    return seen


@pytest.mark.anyio
@pytest.mark.parametrize("mode", MODES)
async def test_mcp_clients_of_both_eras_are_replayed_with_progress(tmp_path: Path, mode: str) -> None:
    seen = []
    for how in ("record", "replay"):
        servers = {"echo": stub() if how == "record" else {"command": "/nonexistent"}}
        config = write_config(tmp_path, hub={"cassette": {"dir": str(tmp_path / "tape"), "mode": how}}, servers=servers)
        with served(config) as hub:
            async with mcp_client(hub, mode) as client:
                seen.append(await use(client))
    assert seen[0] == seen[1]
    assert (3.0, 3.0, None) in seen[1]


@pytest.mark.anyio
async def test_a_client_of_stdio_is_replayed(tmp_path: Path) -> None:
    from mcp import StdioServerParameters
    from mcp.client.stdio import stdio_client

    seen = []
    for how in ("record", "replay"):
        servers = {"echo": stub() if how == "record" else {"command": "/nonexistent"}}
        config = write_config(tmp_path, hub={"cassette": {"dir": str(tmp_path / "tape"), "mode": how}}, servers=servers)
        command, *options = TOOLHUB
        arguments = [*options, "stdio", "--config", str(config)]
        parameters = StdioServerParameters(command=command, args=arguments, env=environment())
        async with Client(stdio_client(parameters), mode="legacy") as client:
            seen.append(await use(client))
    assert seen[0] == seen[1]


def test_a_hub_that_is_killed_leaves_a_recording_that_can_be_replayed(tmp_path: Path) -> None:
    tape = tmp_path / "tape"
    config = write_config(tmp_path, hub={"cassette": {"dir": str(tape), "mode": "record"}}, servers={"echo": stub()})
    with served(config) as hub, hub.client() as client:
        first = new_task(client, id="t1").call("pid").text
        eventually(lambda: any('"tool":"pid"' in path.read_text() for path in tape.glob("*.jsonl")))
        hub.process.kill()
        hub.process.wait()
    (left,) = tape.iterdir()
    left.write_bytes(left.read_bytes() + b'{"n": 2, "ki')
    config = write_config(tmp_path, hub={"cassette": {"dir": str(tape), "mode": "replay"}}, servers={"echo": stub()})
    with served(config) as hub, hub.client() as client, open_task(client, id="t1") as task:
        assert task.call("pid").text == first
        assert hub.processes() == []
