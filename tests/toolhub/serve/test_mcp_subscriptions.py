"""What a client has subscribed to: it outlives the server's process, and belongs to the client."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp_clients import RawClient
from real_processes import FIXTURES
from served_hub import eventually, served, write_config

from toolhub.serve.mcp.client import MOST_SUBSCRIPTIONS

WATCHED = "test://watched-resource"
REFERENCE = {"command": sys.executable, "args": [str(FIXTURES / "reference_server.py")]}


def subscriptions(client: RawClient) -> Any:
    """What the server's process says of itself; a lost session is told to one call."""
    result = client.request("tools/call", {"name": "list_subscriptions", "arguments": {}})["result"]
    return {} if result.get("isError") else json.loads(result["content"][0]["text"])


def test_a_server_that_is_started_again_gets_the_subscriptions_of_its_clients(tmp_path: Path) -> None:
    with served(write_config(tmp_path, servers={"reference": REFERENCE})) as hub, hub.client(timeout=60) as http:
        client = RawClient(http)
        assert client.request("resources/subscribe", {"uri": WATCHED})["result"] == {}
        before = subscriptions(client)
        assert before["subscriptions"] == [WATCHED]
        os.kill(before["pid"], signal.SIGKILL)
        eventually(lambda: subscriptions(client).get("pid", before["pid"]) != before["pid"], within=30)
        eventually(lambda: subscriptions(client)["subscriptions"] == [WATCHED], within=30)
        assert client.request("resources/unsubscribe", {"uri": WATCHED})["result"] == {}
        assert subscriptions(client)["subscriptions"] == []


@pytest.mark.slow
def test_the_subscriptions_of_a_client_are_bounded(tmp_path: Path) -> None:
    with served(write_config(tmp_path, servers={"reference": REFERENCE})) as hub, hub.client(timeout=60) as http:
        client = RawClient(http)
        for number in range(MOST_SUBSCRIPTIONS):
            assert client.request("resources/subscribe", {"uri": f"test://{number}"})["result"] == {}
        refused = client.request("resources/subscribe", {"uri": WATCHED})["error"]
        assert "may subscribe to 1000 resources" in refused["message"]
        assert client.request("resources/subscribe", {"uri": "test://0"})["result"] == {}
        assert client.request("resources/unsubscribe", {"uri": "test://0"})["result"] == {}
        assert client.request("resources/subscribe", {"uri": WATCHED})["result"] == {}
        too_long = client.request("resources/subscribe", {"uri": "test://" + "x" * 10_000})["error"]
        assert "may have 8192 characters" in too_long["message"]
