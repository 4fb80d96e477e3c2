"""Clients of one generation of the protocol and servers of the other: everything that both have works."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp_clients import mcp_client, text_of
from mcp_types import ElicitResult
from real_processes import FIXTURES
from served_hub import FORKED, Json, ServedHub, served, stub, write_config

pytestmark = pytest.mark.anyio

REFERENCE = str(FIXTURES / "reference_server.py")
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
ANSWER = {"username": "ada", "email": "ada@example.org", "name": "Ada"}
# (era of the server, mode of the client)
BRIDGED = [("handshake", "auto"), ("modern", "legacy")]


@pytest.fixture(scope="module", params=BRIDGED, ids=["modern client", "handshake client"])
def bridged(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServedHub, str]]:
    """A hub with a server that speaks one generation only, and the mode of a client that speaks the other."""
    only, mode = request.param
    server = {"command": sys.executable, "args": [REFERENCE, "--only", only], **FORKED}
    with served(write_config(tmp_path_factory.mktemp("bridged"), servers={"reference": server})) as hub:
        yield hub, mode


async def answered(context: Any, params: Any) -> ElicitResult:
    wanted = params.requested_schema["properties"]
    return ElicitResult(action="accept", content={key: ANSWER[key] for key in wanted})


def connected(bridged: tuple[ServedHub, str], **options: Any) -> Any:
    hub, mode = bridged
    return mcp_client(hub, mode, **options)


async def test_the_client_and_the_server_are_of_different_generations(bridged: tuple[ServedHub, str]) -> None:
    hub, mode = bridged
    async with connected(bridged) as client:
        await client.call_tool("test_simple_text")
        with hub.client() as http:
            eras = {slot["era"] for task in http.get("/v1/tasks").json()["tasks"] for slot in task["slots"]}
        assert client.session.protocol_version == ("2026-07-28" if mode == "auto" else "2025-11-25")
        assert eras == {"handshake" if mode == "auto" else "modern"}


async def test_lists_calls_prompts_and_resources_work(bridged: tuple[ServedHub, str]) -> None:
    async with connected(bridged) as client:
        assert "test_simple_text" in [tool.name for tool in (await client.list_tools()).tools]
        assert "simple text" in text_of(await client.call_tool("test_simple_text"))
        assert "test_simple_prompt" in [prompt.name for prompt in (await client.list_prompts()).prompts]
        assert (await client.get_prompt("test_simple_prompt")).messages
        assert "test://static-text" in [str(one.uri) for one in (await client.list_resources()).resources]
        assert (await client.read_resource("test://static-text")).contents
        assert len((await client.list_resource_templates()).resource_templates) == 1


async def test_progress_reaches_the_client(bridged: tuple[ServedHub, str]) -> None:
    seen: list[float] = []
    everything = anyio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)
        if progress == 100:
            everything.set()

    async with connected(bridged) as client:
        await client.call_tool("test_tool_with_progress", progress_callback=on_progress)
        with anyio.fail_after(30):
            await everything.wait()
    assert seen == [0, 50, 100]


async def ask_the_user(client: Client, mode: str) -> str:
    if mode == "auto":
        return text_of(await client.call_tool("test_elicitation", {"message": "Who are you?"}))
    return text_of(await client.call_tool("test_input_required_result_elicitation"))


async def test_the_user_is_asked_in_the_way_that_the_client_knows(bridged: tuple[ServedHub, str]) -> None:
    async with connected(bridged, elicitation_callback=answered) as client:
        with anyio.fail_after(30):
            assert "ada" in (await ask_the_user(client, bridged[1])).lower()


@pytest.mark.filterwarnings("ignore:resources/subscribe is removed")
async def test_what_only_one_generation_has_is_refused_by_name(bridged: tuple[ServedHub, str]) -> None:
    if bridged[1] == "auto":
        async with connected(bridged) as client:
            with pytest.raises(MCPError, match="the client does not support elicitation/create"):
                await client.call_tool("test_elicitation", {"message": "Who are you?"})
        return
    async with connected(bridged) as client:
        with pytest.raises(MCPError, match="speaks only revision 2026-07-28"):
            await client.subscribe_resource("test://watched-resource")


@pytest.mark.parametrize("others", [{}, {"other": stub()}], ids=["one server", "several servers"])
@pytest.mark.parametrize("kind", ["tool", "prompt"])
async def test_a_handshake_client_hears_of_changes_that_a_modern_server_tells_only_subscribers(
    kind: str, others: Json, tmp_path: Path
) -> None:
    heard = anyio.Event()

    async def on_message(message: Any) -> None:
        if getattr(message, "method", "") == f"notifications/{kind}s/list_changed":
            heard.set()

    modern = {"command": sys.executable, "args": [REFERENCE, "--only", "modern"]}
    with served(write_config(tmp_path, servers={"reference": modern, **others})) as hub:
        async with mcp_client(hub, "legacy", message_handler=on_message) as client:
            with anyio.fail_after(30):
                while not heard.is_set():  # the first change may come before the hub has subscribed
                    await client.call_tool(f"test_trigger_{kind}_change")
                    with anyio.move_on_after(0.2):
                        await heard.wait()


@pytest.mark.parametrize("others", [{}, {"other": stub()}], ids=["one server", "several servers"])
async def test_a_modern_client_that_begins_with_a_call_is_served_in_its_own_generation(
    others: Json, tmp_path: Path
) -> None:
    both = {"command": sys.executable, "args": [REFERENCE]}
    with served(write_config(tmp_path, servers={"reference": both, **others})) as hub, hub.client(timeout=60) as http:
        arguments = {"region": "north"}
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
            "Mcp-Name": "test_custom_headers",
            "Mcp-Param-Region": "north",
            "X-Toolhub-Task": "modern",
        }
        params = {"name": "test_custom_headers", "arguments": arguments, "_meta": ENVELOPE}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        called = http.post("/mcp", json=message, headers=headers).json()
        assert called["result"]["content"][0]["text"] == "region: north"
        (task,) = http.get("/v1/tasks").json()["tasks"]
        assert {slot["era"] for slot in task["slots"] if slot["server"] == "reference"} == {"modern"}
