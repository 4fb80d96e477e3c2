"""Which messages a server gets: those of its clients, and none that only slow a call down."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp_clients import RawClient
from real_processes import FIXTURES
from served_hub import served, stub, write_config

MODERN = "2026-07-28"
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
# Writes down the method of each message that it gets.
NOTING = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from minimal import Server, append_line, text

class Noting(Server):
    def receive(self, line):
        append_line(str(Path(__file__).with_name("methods")), json.loads(line)["method"])
        super().receive(line)

server = Noting("noting")
server.tool("say", word="string")(lambda call: text(call.arguments["word"]))
server.run()
"""


class Noting:
    """A server that writes down what it gets."""

    def __init__(self, folder: Path) -> None:
        self._script, self._methods = folder / "noting.py", folder / "methods"
        self._script.write_text(NOTING)
        self._methods.touch()

    def entry(self, **fields: Any) -> dict[str, Any]:
        return {"command": sys.executable, "args": [str(self._script), str(FIXTURES)], **fields}

    def taken(self) -> list[str]:
        """The methods since this was asked last."""
        methods = self._methods.read_text().split()
        self._methods.write_text("")
        return methods


@pytest.fixture
def noting(tmp_path: Path) -> Noting:
    return Noting(tmp_path)


def modern_call(http: httpx2.Client, **headers: str) -> Any:
    params = {"name": "say", "arguments": {"word": "hello"}, "_meta": ENVELOPE}
    told = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": "tools/call",
        "Mcp-Name": "say",
        **headers,
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return http.post("/mcp", json=message, headers=told).json()["result"]


def test_a_modern_call_with_arguments_makes_the_hub_list_no_tools(noting: Noting, tmp_path: Path) -> None:
    with served(write_config(tmp_path, servers={"noting": noting.entry()})) as hub, hub.client(timeout=60) as http:
        for _ in range(2):
            assert modern_call(http, **{"X-Toolhub-Task": "t"})["content"][0]["text"] == "hello"
        taken = noting.taken()
        assert "tools/list" not in taken and taken.count("tools/call") == 2 and taken.count("initialize") == 1


@pytest.mark.parametrize("several", [False, True], ids=["one server", "several servers"])
@pytest.mark.parametrize("is_modern", [False, True], ids=["handshake", "modern"])
def test_the_first_call_of_a_client_on_a_warm_hub_costs_the_server_one_message(
    is_modern: bool, several: bool, noting: Noting, tmp_path: Path
) -> None:
    servers = {"noting": noting.entry(share="hub")} | ({"echo": stub()} if several else {})
    with served(write_config(tmp_path, servers=servers)) as hub, hub.client(timeout=60) as http:

        def call(task: str) -> str:
            if is_modern:
                result = modern_call(http, **{"X-Toolhub-Task": task})
            else:
                client = RawClient(http)
                result = client.request("tools/call", {"name": "say", "arguments": {"word": "hello"}})["result"]
            return str(result["content"][0]["text"])

        assert call("first") == "hello"
        noting.taken()
        assert call("second") == "hello"
        assert noting.taken() == ["tools/call"]
