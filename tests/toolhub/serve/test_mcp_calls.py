"""The MCP gateway with one server behind it: lists, calls, and failures, in both eras of the protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp_clients import MODES, PROTOCOL, RawClient, mcp_client, text_of
from mcp_types import ImageContent
from served_hub import ServedHub, served, stub, write_config

pytestmark = pytest.mark.anyio


@pytest.fixture(params=MODES)
async def mcp(request: pytest.FixtureRequest, hub: ServedHub) -> AsyncIterator[Client]:
    async with mcp_client(hub, request.param) as client:
        yield client


async def test_the_two_modes_speak_the_two_eras(hub: ServedHub) -> None:
    spoken = []
    for mode in MODES:
        async with mcp_client(hub, mode) as client:
            spoken.append(client.session.protocol_version)
    assert spoken == ["2025-11-25", "2026-07-28"]


async def test_tools_are_listed_under_their_plain_names(mcp: Client) -> None:
    tools = {tool.name: tool for tool in (await mcp.list_tools()).tools}
    assert {"echo", "sleep", "image", "structured"} <= set(tools)
    assert tools["echo"].description == "Fixture tool echo" and tools["echo"].input_schema["required"] == ["text"]


@pytest.mark.parametrize("name", ["echo", "echo__echo"])
async def test_a_tool_is_called_by_its_plain_and_its_qualified_name(mcp: Client, name: str) -> None:
    assert text_of(await mcp.call_tool(name, {"text": "hello"})) == "hello"


async def test_a_call_needs_no_list_before(hub: ServedHub) -> None:
    """Each mode with a task of its own, so that nothing is known of it yet."""
    for mode in MODES:
        async with mcp_client(hub, mode, headers={"X-Toolhub-Task": f"fresh-{mode}"}) as client:
            assert text_of(await client.call_tool("echo", {"text": "hello"})) == "hello"


async def test_images_pass(mcp: Client) -> None:
    (block,) = (await mcp.call_tool("image")).content
    assert isinstance(block, ImageContent) and block.mime_type == "image/png" and block.data.startswith("iVBOR")


async def test_structured_content_passes(mcp: Client) -> None:
    result = await mcp.call_tool("structured")
    assert result.structured_content == {"answer": 42} and result.content[0].text == '{"answer": 42}'  # type: ignore[union-attr]


async def test_large_arguments_and_results_pass(mcp: Client) -> None:
    text = "x" * 6_000_000
    assert text_of(await mcp.call_tool("echo", {"text": text})) == text


async def test_a_tool_s_own_failure_is_a_result(mcp: Client) -> None:
    result = await mcp.call_tool("fail", {"message": "no luck"})
    assert result.is_error and result.content[0].text == "no luck"  # type: ignore[union-attr]


async def test_an_unknown_tool_is_a_result_that_says_so(mcp: Client) -> None:
    for name in ("nothing", "echo__nothing", "nobody__echo"):
        result = await mcp.call_tool(name, {})
        assert result.is_error and name.split("__")[-1 if name.startswith("echo") else 0] in str(result.content)


async def test_a_lost_session_says_that_the_call_may_have_been_executed(mcp: Client) -> None:
    result = await mcp.call_tool("die", {"code": 5})
    assert result.is_error
    text = result.content[0].text  # type: ignore[union-attr]
    assert "exited with 5" in text and "may or may not have been executed" in text
    assert result.meta is not None
    details = result.meta["toolhub/error"]
    assert details["type"] == "SessionLost" and details["sent"] == "maybe" and details["exit_code"] == 5


async def test_a_json_rpc_error_of_the_server_is_relayed_with_code_and_message(mcp: Client) -> None:
    with pytest.raises(MCPError) as caught:
        await mcp.call_tool("echo", {})
    assert caught.value.code == -32602 and caught.value.message == "Invalid arguments: KeyError('text')"


# --- byte for byte --------------------------------------------------------------------------------------------------


@pytest.fixture
def raw(client: httpx2.Client) -> RawClient:
    return RawClient(client)


def test_the_hub_says_who_it_is_and_that_tools_can_change(raw: RawClient) -> None:
    result = raw.welcome["result"]
    assert result["serverInfo"]["name"] == "toolhub"
    assert result["capabilities"]["tools"] == {"listChanged": True}


def test_unknown_fields_of_a_result_survive(raw: RawClient) -> None:
    result = raw.request("tools/call", {"name": "structured", "arguments": {}})["result"]
    assert result["xExtra"] == 1 and result["content"][0]["xBlockExtra"] == 1


def test_a_relayed_error_is_a_json_rpc_error_on_the_wire(raw: RawClient) -> None:
    error = raw.request("tools/call", {"name": "echo", "arguments": {}})["error"]
    assert error["code"] == -32602 and error["message"].startswith("Invalid arguments")


def test_a_server_that_asks_its_client_without_end_is_refused_beyond_a_number(tmp_path: Path) -> None:
    config = write_config(tmp_path, servers={"asks": stub("asks_without_end")})
    with served(config) as hub, hub.client() as client:
        hello = {
            "protocolVersion": PROTOCOL,
            "capabilities": {"sampling": {}},
            "clientInfo": {"name": "c", "version": "1"},
        }
        headers = {"Accept": "application/json, text/event-stream"}
        begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        headers["Mcp-Session-Id"] = client.post("/mcp", json=begin, headers=headers).headers["mcp-session-id"]
        params = {"name": "ask", "arguments": {"questions": 1000, "refused": 900}}
        call = {"jsonrpc": "2.0", "id": "call", "method": "tools/call", "params": params}
        events = client.post("/mcp", json=call, headers=headers, timeout=60).text
    assert events.count('"method":"sampling/createMessage"') == 100
    assert '"text":"900"' in events


@pytest.mark.parametrize("number", [[], {}, 1.5], ids=str)
def test_an_id_that_cannot_be_one_is_refused_and_cancels_nothing(client: httpx2.Client, number: Any) -> None:
    accept = {"Accept": "application/json, text/event-stream"}
    params = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    message = {"jsonrpc": "2.0", "id": number, "method": "initialize", "params": params}
    assert client.post("/mcp", json=message, headers=accept).status_code == 400
    begun = client.post("/mcp", json=message | {"id": 1}, headers=accept)
    session = accept | {"Mcp-Session-Id": begun.headers["mcp-session-id"]}
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}
    assert client.post("/mcp", json=cancel, headers=session).status_code == 202


def test_a_request_without_a_session_is_refused(client: httpx2.Client) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    answer = client.post("/mcp", json=message, headers={"Accept": "application/json, text/event-stream"})
    assert answer.status_code == 400
