"""The hub works with the lowest versions that its extras allow, not only with those of today.

Constraints hold every direct requirement at its floor; what those need in turn is as new as they take.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from hub_process import free_port

from testbed import third_party

ROOT = Path(__file__).parents[2]
EXTRAS = ("hub", "servers")
CONFIG = """
servers:
  time:
    command: {time}
  clock:
    builtin: clock
  python:
    builtin: python
    options:
      profile: bare
"""
EMBEDDED = """
import asyncio, re, sys
from toolhub import Hub, load_config

async def main():
    async with Hub(load_config(sys.argv[1])) as hub, hub.task("t1") as task:
        for server in ("time", "clock"):
            assert "UTC" in (await task.call(server, "get_current_time", {"timezone": "UTC"})).text
        made = (await task.call("python", "create_sandbox")).text
        sandbox = re.search(r"sandbox_id: ?(\\S+)", made)[1]
        run = {"code_block": "print(6 * 7)", "sandbox_id": sandbox}
        print((await task.call("python", "run_python_code", run)).text)

asyncio.run(main())
"""
SERVED = """
import asyncio, sys, toolhub

async def main():
    async with toolhub.connect(sys.argv[1]) as hub, hub.task() as task:
        print((await task.call("clock", "get_current_time", {"timezone": "UTC"})).text)

asyncio.run(main())
"""
MCP = """
import asyncio, sys
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

async def main():
    async with streamable_http_client(sys.argv[1] + "/mcp") as streams, ClientSession(*streams[:2]) as session:
        await session.initialize()
        print([tool.name for tool in (await session.list_tools()).tools])

asyncio.run(main())
"""


def floors() -> dict[str, str]:
    """Return the lowest version of every package that the extras name."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lowest = {}
    for spec in (spec for extra in EXTRAS for spec in extras[extra]):
        found = re.match(r"([\w-]+)(?:\[.*?\])?>=([\d.]+)", spec)
        assert found is not None, f"{spec} has no floor"
        lowest[found[1]] = max(lowest.get(found[1], "0"), found[2], key=numbers)
    return lowest


def pins() -> tuple[str, ...]:
    return tuple(f"{name}=={version}" for name, version in sorted(floors().items()))


def numbers(version: str) -> list[int]:
    """Return what to compare; 6 and 6.0 are the same version."""
    parts = [int(part) for part in version.split(".")]
    return parts + [0] * (4 - len(parts))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and the lowest versions."""
    copy = tmp_path_factory.mktemp("lowest") / "venv"
    shutil.copytree(third_party.agent_venv("lowest-hub", pins()), copy, symlinks=True)
    python = copy / "bin" / "python"
    constraints = copy / "constraints.txt"
    constraints.write_text("\n".join(pins()))
    wanted = f"toolhub-runtime[{','.join(EXTRAS)}] @ {wheel.as_uri()}"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", str(constraints), wanted)
    return python


def run(python: Path, *arguments: str) -> str:
    done = subprocess.run(
        [python, *arguments], capture_output=True, text=True, cwd=python.parent, timeout=third_party.INSTALL_TIMEOUT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def config(python: Path, tmp_path: Path) -> str:
    path = tmp_path / "hub.yaml"
    path.write_text(CONFIG.format(time=python.parent / "mcp-server-time"))
    return str(path)


def test_every_direct_requirement_is_at_its_floor(python: Path) -> None:
    listed = json.loads(run(python, "-m", "pip", "list", "--format=json"))
    installed = {entry["name"].lower().replace("_", "-"): entry["version"] for entry in listed}
    for name, floor in floors().items():
        assert numbers(installed[name]) == numbers(floor), name
    run(python, "-m", "pip", "check")


def test_an_embedded_hub_calls_a_process_a_builtin_and_a_sandbox(python: Path, config: str) -> None:
    assert "42" in run(python, "-c", EMBEDDED, config)


def test_a_served_hub_answers_the_client_the_command_and_an_mcp_client(
    python: Path, config: str, tmp_path: Path
) -> None:
    url = f"unix://{tmp_path}/hub.sock"
    port = free_port()
    listen = ["--uds", f"{tmp_path}/hub.sock", "--port", str(port)]
    line = [str(python), "-m", "toolhub", "serve", "--config", str(config), *listen]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as hub:
        try:
            assert hub.stderr is not None
            assert any("Ctrl-C stops" in text for text in iter(hub.stderr.readline, ""))
            assert "UTC" in run(python, "-c", SERVED, url)
            assert "get_current_time" in run(python, "-m", "toolhub", "tools", "--hub", url)
            assert "clock" in run(python, "-c", MCP, f"http://127.0.0.1:{port}")
        finally:
            hub.terminate()
