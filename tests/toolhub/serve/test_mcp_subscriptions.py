"""What a client has subscribed to: it outlives the server's process, and belongs to the client."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from mcp_clients import RawClient
from real_processes import FIXTURES
from served_hub import eventually, served, write_config

WATCHED = "test://watched-resource"


def subscriptions(client: RawClient) -> Any:
    """What the server's process says of itself; a lost session is told to one call."""
    result = client.request("tools/call", {"name": "list_subscriptions", "arguments": {}})["result"]
    return {} if result.get("isError") else json.loads(result["content"][0]["text"])


def test_a_server_that_is_started_again_gets_the_subscriptions_of_its_clients(tmp_path: Path) -> None:
    server = {"command": sys.executable, "args": [str(FIXTURES / "reference_server.py")]}
    with served(write_config(tmp_path, servers={"reference": server})) as hub, hub.client(timeout=60) as http:
        client = RawClient(http)
        assert client.request("resources/subscribe", {"uri": WATCHED})["result"] == {}
        before = subscriptions(client)
        assert before["subscriptions"] == [WATCHED]
        os.kill(before["pid"], signal.SIGKILL)
        eventually(lambda: subscriptions(client).get("pid", before["pid"]) != before["pid"], within=30)
        eventually(lambda: subscriptions(client)["subscriptions"] == [WATCHED], within=30)
        assert client.request("resources/unsubscribe", {"uri": WATCHED})["result"] == {}
        assert subscriptions(client)["subscriptions"] == []
