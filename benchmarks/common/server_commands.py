"""The MCP servers that the benchmarks run: how each is started, and one call that it answers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.common.result import ROOT, Json
from testbed import third_party

_SERVERS = Path(__file__).parent / "mcp_servers"
_FIXTURE = ROOT / "tests" / "fixtures" / "echo.py"


@dataclass(frozen=True)
class ServerCommand:
    """`tool` and `arguments` are a call that every instance of the server answers without network.

    numbered: the argument that gets a number of its own in each call and comes back in its answer.
    expected: what every answer has. builtin: what a hub runs in its own process instead of the command.
    url: where it runs already, instead of the command. mode: how the SDK's client over HTTP connects, see `mcp.Client`.
    """

    name: str
    argv: list[str]
    tool: str
    arguments: dict[str, Any]
    env: dict[str, str] = field(default_factory=dict)
    numbered: str = ""
    expected: str = ""
    builtin: str = ""
    url: str = ""
    mode: str = "legacy"

    def to_json(self) -> Json:
        call = {"tool": self.tool, "arguments": self.arguments, "numbered": self.numbered, "expected": self.expected}
        where = {"argv": self.argv, "builtin": self.builtin, "url": self.url}
        return {"name": self.name, "mode": self.mode, **where, **call}

    def config(self, **fields: Any) -> Json:
        """The server's entry in a hub's config."""
        return {"command": self.argv[0], "args": self.argv[1:], "env": self.env, **fields}


def sdk_echo() -> ServerCommand:
    """A server as people write them: the SDK's `MCPServer` over its own stdio transport."""
    return _echo("sdk", [sys.executable, str(_SERVERS / "echo_sdk.py")])


def lean_echo() -> ServerCommand:
    """A server that costs almost nothing, so that what the client costs is seen."""
    return _echo("lean", [sys.executable, "-S", str(_SERVERS / "echo_lean.py")])


def fixture_echo() -> ServerCommand:
    """The tests' server on the standard library alone; starts in some 15 ms."""
    return _echo("echo", [sys.executable, "-S", str(_FIXTURE)])


def _echo(name: str, argv: list[str]) -> ServerCommand:
    return ServerCommand(name, argv, "echo", {"text": "hello world"}, numbered="text")


def own_clock() -> ServerCommand:
    """One of toolhub's own servers, over its own stdio transport."""
    argv = [sys.executable, "-m", "toolhub_servers", "clock"]
    return ServerCommand("clock", argv, "get_current_time", {"timezone": "UTC"}, expected='"UTC"')


def builtin_clock() -> ServerCommand:
    """The same server in the hub's process."""
    return replace(own_clock(), name="builtin clock", builtin="clock")


def third_party_servers(directory: Path) -> list[ServerCommand]:
    """Three servers that others wrote, two in Python and one in Node; installed on first use.

    directory: where a git repository is made for the git server.
    """
    subprocess.run([third_party.git(), "init", "--quiet", str(directory)], check=True)
    python = str(third_party.mcp2_python())
    package = third_party.npm_prefix() / "node_modules/@modelcontextprotocol/server-everything"
    return [
        ServerCommand("time", [python, "-m", "mcp_server_time"], "get_current_time", {"timezone": "UTC"}),
        ServerCommand("git", [python, "-m", "mcp_server_git"], "git_status", {"repo_path": str(directory)}),
        ServerCommand(
            "everything", [third_party.node(), str(package / "dist/index.js"), "stdio"], "echo", {"message": "hello"}
        ),
    ]
