"""Servers in this process: the same answers as over the SDK's streams, and calls that touch nobody else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
from builtin_tools import CallSignals, create_server
from mcp import ClientSession, MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.transport_context import TransportContext

from toolhub.channel.base import ChannelClosed, OpenFailed, Refused
from toolhub.channel.builtin import open_builtin
from toolhub.channel.mcp import McpChannel
from toolhub.config import parse_server

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:The logging capability is deprecated"),  # it is what servers have until 2026
]

Json = dict[str, Any]
Outcome = tuple[str, Any]

CALLS: list[tuple[str, Json]] = [
    ("text", {"text": "grüße ✓\n\u2028"}),
    ("text", {"text": ""}),
    ("text", {"text": 3}),
    ("text", {}),
    ("point", {"x": 1.5}),
    ("point", {"x": "no number"}),
    ("image", {}),
    ("blocks", {}),
    ("nothing", {}),
    ("refuses", {}),
    ("crashes", {}),
    ("answers_with_a_code", {}),
    ("in_a_thread", {"count": 3}),
    ("keep", {"value": {"deep": [{"er": [1, None, True]}], "tuple": (1, 2)}}),
    ("no_such_tool", {"text": ""}),
    ("asks_back", {}),
]


@asynccontextmanager
async def opened(stage: CallSignals | None = None) -> AsyncIterator[McpChannel]:
    spec = parse_server("lean", {"builtin": "builtin_tools:create_server", "options": {"stage": stage}})
    with anyio.fail_after(30):
        async with open_builtin(spec) as channel:
            yield channel


async def call_tool(channel: McpChannel, tool: str, arguments: Json, **listeners: Any) -> Json:
    return await channel.request("tools/call", {"name": tool, "arguments": arguments}, **listeners)


async def over_streams(calls: list[tuple[str, Json]]) -> list[Outcome]:
    """What the SDK's own client gets, over the SDK's own streams."""
    server = create_server()._lowlevel_server
    outcomes: list[Outcome] = []
    async with create_client_server_memory_streams() as (near, far), anyio.create_task_group() as tasks:
        tasks.start_soon(server.run, *far, server.create_initialization_options())
        dispatcher: JSONRPCDispatcher[TransportContext] = JSONRPCDispatcher(*near)
        async with ClientSession(dispatcher=dispatcher) as session:
            await session.initialize()
            for tool, arguments in calls:
                try:
                    params = {"name": tool, "arguments": arguments}
                    outcomes.append(("result", await dispatcher.send_raw_request("tools/call", params)))
                except MCPError as exc:
                    outcomes.append(("refused", [exc.code, exc.message, exc.data]))
        tasks.cancel_scope.cancel()
    return outcomes


async def test_every_kind_of_answer_is_byte_for_byte_what_the_sdk_gives_over_its_streams() -> None:
    outcomes: list[Outcome] = []
    async with opened() as channel:
        for tool, arguments in CALLS:
            try:
                outcomes.append(("result", await call_tool(channel, tool, arguments)))
            except Refused as exc:
                outcomes.append(("refused", [exc.code, exc.message, exc.data]))
    expected = await over_streams(CALLS)
    assert [json.dumps(outcome) for outcome in outcomes] == [json.dumps(outcome) for outcome in expected]
    assert {kind for kind, _ in outcomes} == {"result", "refused"}  # both ways of failing were seen
    assert outcomes[-1][1]["content"][0]["text"] == "-32600: Elicitation not supported"


async def test_an_answer_is_plain_json_and_nothing_else() -> None:
    plain = (dict, list, str, int, float, bool, type(None))

    def check(value: Any) -> None:
        assert type(value) in plain
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(inner)

    async with opened() as channel:
        for tool, arguments in CALLS:
            try:
                check(await call_tool(channel, tool, arguments))
            except Refused as exc:
                check(exc.data)


async def test_what_the_caller_does_to_its_arguments_afterwards_does_not_reach_the_tool() -> None:
    stage = CallSignals()
    arguments: dict[str, Any] = {"value": {"list": [1], "inner": {"key": "sent"}}}
    async with opened(stage) as channel:
        await call_tool(channel, "keep", arguments)
        arguments["value"]["inner"]["key"] = "changed later"
        arguments["value"]["list"].append(2)
        assert stage.kept == [{"list": [1], "inner": {"key": "sent"}}]


async def test_what_the_tool_does_to_its_arguments_does_not_reach_the_caller() -> None:
    stage, arguments = CallSignals(), {"value": {"list": [1]}}
    async with opened(stage) as channel:
        await call_tool(channel, "keep", arguments)
        stage.kept[0]["list"].append("the tool's")
        assert arguments == {"value": {"list": [1]}}


async def test_what_is_done_to_a_result_does_not_reach_the_tool() -> None:
    stage = CallSignals()
    async with opened(stage) as channel:
        result = await call_tool(channel, "keep", {"value": {"list": [1]}})
        result["structuredContent"]["list"].append("the caller's")
        assert stage.kept == [{"list": [1]}]


async def test_progress_and_logs_arrive_before_the_answer() -> None:
    seen: list[Any] = []

    async def on_progress(*report: Any) -> None:
        seen.append(report)

    async def on_log(entry: Json) -> None:
        seen.append(entry)

    async with opened() as channel:
        await call_tool(channel, "reports", {"steps": 2}, on_progress=on_progress, on_log=on_log)
        assert seen == [
            (1.0, 2.0, "step 1"),
            (2.0, 2.0, "step 2"),
            {"level": "info", "logger": "lean", "data": {"steps": 2}},
        ]


async def test_a_raising_listener_costs_the_call_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def on_progress(*report: Any) -> None:
        raise RuntimeError("listener")

    async with opened() as channel:
        result = await call_tool(channel, "reports", {"steps": 1}, on_progress=on_progress)
        assert result["content"][0]["text"] == "done"
    assert "a listener of notifications raised" in caplog.text


async def test_a_cancelled_call_cancels_its_tool() -> None:
    stage = CallSignals()
    async with opened(stage) as channel:
        async with anyio.create_task_group() as callers:
            callers.start_soon(call_tool, channel, "waits_for_ever", {})
            await stage.began.wait()
            callers.cancel_scope.cancel()
        await stage.was_cancelled.wait()
        assert (await call_tool(channel, "text", {"text": "after"}))["content"][0]["text"] == "after"


async def test_a_tool_that_resists_cancellation_does_not_keep_its_caller() -> None:
    stage = CallSignals()
    async with opened(stage) as channel:
        async with anyio.create_task_group() as callers:
            callers.start_soon(call_tool, channel, "resists", {})
            await stage.began.wait()
            callers.cancel_scope.cancel()
        assert not stage.may_end.is_set()
        stage.may_end.set()


async def test_the_end_of_the_conversation_is_the_end_of_a_call_in_it() -> None:
    stage = CallSignals()
    async with anyio.create_task_group() as callers:

        async def call(channel: McpChannel) -> None:
            with pytest.raises(ChannelClosed) as caught:
                await call_tool(channel, "waits_for_ever", {})
            assert caught.value.sent == "maybe"

        async with opened(stage) as channel:
            callers.start_soon(call, channel)
            await stage.began.wait()
        await stage.was_cancelled.wait()
    assert stage.ended.is_set()


async def test_a_tool_sees_the_context_of_its_caller() -> None:
    whose: ContextVar[str] = ContextVar("whose", default="nobody's")
    seen: list[str] = []

    class Kept(list[Any]):
        def append(self, value: Any) -> None:
            seen.append(whose.get())

    stage = CallSignals()
    stage.kept = Kept()
    async with opened(stage) as channel:
        whose.set("the caller's")
        await call_tool(channel, "keep", {"value": {}})
    assert seen == ["the caller's"]


async def test_a_server_that_cannot_begin_is_an_error_of_the_opening() -> None:
    spec = parse_server("bad", {"builtin": "builtin_tools:create_server", "options": {"stages": 1}})
    with pytest.raises(OpenFailed, match="stages"):
        async with open_builtin(spec):
            pass
