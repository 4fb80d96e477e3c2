"""Installing the thin client changes nothing in an agent's environment, and it works there.

Each environment is made from real packages once and kept in the test cache; a test changes only a copy of it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from agent_environments import AGENTS, Agent, copied_environment
from hub_process import HubProcess, echo_server, private_hub, tcp_hub

from testbed import third_party

TOKEN = "a-token-of-the-tests"


CLIENT = """
import asyncio, json, sys, toolhub
from toolhub_agent import Dispatcher

async def main(url, token, server):
    progress = []

    async def on_progress(done, total, message):
        progress.append(done)

    async with toolhub.connect(url, token=token) as hub:
        async with hub.task(servers={"echo": json.loads(server)} if server else None) as task:
            first = await task.call("echo", "echo", {"text": "called"})
            await task.call("echo", "echo", {"text": "x" * 300_000}, on_progress=on_progress)
            print(first.text)

asyncio.run(main(*sys.argv[1:]))
"""
MANAGER = """
import asyncio, json, sys
from toolhub.miroflow import ToolManager

params = json.loads(sys.argv[1])
try:
    import mcp
except ImportError:
    pass
else:
    params = mcp.StdioServerParameters(**params)

async def main():
    manager = ToolManager([{"name": "mine", "params": params}])
    print((await manager.execute_tool_call("mine", "echo", {"text": "managed"}))["result"])
    await manager.aclose()

asyncio.run(main())
"""


@dataclass(frozen=True)
class Installed:
    """A copy of an agent's environment in which the wheel was installed."""

    agent: Agent
    python: Path
    before: list[str]
    after: list[str]

    def run(self, *arguments: str, **environ: str) -> str:
        return _run(self.python, *arguments, **environ)


@pytest.fixture(scope="module", params=AGENTS)
def installed(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    name: str = request.param
    with copied_environment(name, tmp_path_factory.mktemp("agents")) as environment:
        python = environment / "bin" / "python"
        before = _run(python, "-m", "pip", "freeze").splitlines()
        _run(python, "-m", "pip", "install", "--quiet", str(wheel))
        yield Installed(AGENTS[name], python, before, _run(python, "-m", "pip", "freeze").splitlines())


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with private_hub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


def test_installing_adds_our_package_and_changes_no_other(installed: Installed) -> None:
    added = [line for line in installed.after if line not in installed.before]
    assert [line.partition(" ")[0] for line in added] == ["toolhub-runtime"]
    assert [line for line in installed.before if line not in installed.after] == []


def test_the_environment_stays_consistent_and_the_agents_imports_work(installed: Installed) -> None:
    installed.run("-m", "pip", "check")
    installed.run("-c", f"import {installed.agent.imports}")


def test_the_thin_client_calls_a_hub_over_a_unix_socket(installed: Installed, hub: HubProcess) -> None:
    server = json.dumps(echo_server())
    assert installed.run("-W", "error", "-c", CLIENT, hub.url, "", server) == "called\n"


def test_the_thin_client_calls_a_hub_over_tcp(installed: Installed, tmp_path: Path) -> None:
    with tcp_hub(tmp_path / "hub.yaml", TOKEN) as hub:
        assert installed.run("-W", "error", "-c", CLIENT, hub.url, TOKEN, "") == "called\n"


def test_the_tool_manager_works_there(installed: Installed, hub: HubProcess) -> None:
    server = json.dumps(echo_server())
    assert installed.run("-c", MANAGER, server, TOOLHUB_URL=hub.url) == "managed\n"


def _run(python: Path, *arguments: str, **environ: str) -> str:
    """Run an environment's Python, without this one's settings, and return what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TOOLHUB_"))}
    done = subprocess.run(
        [python, *arguments],
        capture_output=True,
        text=True,
        cwd=python.parent,
        env=kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"} | environ,
        timeout=third_party.INSTALL_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
