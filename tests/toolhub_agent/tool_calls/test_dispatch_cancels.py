"""What was started too soon is taken back, and nothing outlives its turn."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from toolhub_agent.tool_calls import Dispatcher
from toolhub_agent.types import Delta, ToolCall

from tests.toolhub_agent.tool_calls.staged_tools import (
    CATALOG,
    Events,
    StagedTools,
    native,
    run,
    search,
    settled,
    texts,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("begun", ["<use_mcp_tool>\n<server_name>web", "<use_mcp_tool> broken"])
async def test_a_call_that_is_never_completed_cancels_what_was_started(begun):
    tools, events = StagedTools(), Events()
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG, on_event=events) as turn:
            turn.feed(search(1))
            await tools.wait_begun(1)
            turn.feed(begun)
            turned = await turn.finish()
            assert turned.problem is not None
            assert (turned.is_void, turned.format_error, len(turned.calls)) == (True, False, 1)
            assert await texts(turn) == []
    assert tools.log == ["start 1", "cancel 1"]
    assert events.told == [("early", 1)]


async def test_a_tolerant_turn_runs_the_complete_calls_all_the_same():
    with anyio.fail_after(30):
        async with Dispatcher(StagedTools(held=False), CATALOG, tolerant=True) as turn:
            turn.feed(search(1) + run(2) + "<use_mcp_tool>\n<server_name>web")
            turned = await turn.finish()
            assert turned.problem is not None
            assert not turned.is_void
            assert await texts(turn) == ["result 1", "result 2"]


async def test_a_format_error_is_told():
    with anyio.fail_after(30):
        async with Dispatcher(StagedTools(), CATALOG) as turn:
            turn.feed("<arguments>")
            assert (await turn.finish()).format_error


async def test_a_call_that_was_only_thinking_is_cancelled_and_leaves_no_outcome():
    tools = StagedTools()
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG) as turn:
            turn.feed("Perhaps " + search(1))
            await tools.wait_begun(1)
            turn.feed("</think>" + search(2))
            tools.release(2)
            assert [call.arguments for call in (await turn.finish()).calls] == [{"n": 2}]
            assert await texts(turn) == ["result 2"]
    assert tools.log.count("cancel 1") == 1


async def test_a_call_found_and_withdrawn_in_one_piece_is_not_started():
    tools = StagedTools(held=False)
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG) as turn:
            turn.feed(search(1) + "</think>" + search(2))
            await turn.finish()
            assert await texts(turn) == ["result 2"]
    assert tools.log == ["start 2", "end 2"]


async def test_more_text_after_a_native_object_cancels_the_call_and_makes_it_an_error():
    tools = StagedTools()
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG, protocol="native") as turn:
            turn.feed(Delta(tool_calls=(native(1),)))
            await tools.wait_begun(1)
            turn.feed(Delta(tool_calls=({"index": 0, "function": {"arguments": '{"n": 2}'}},)))
            await turn.finish()
            outcomes = [outcome async for outcome in turn.results()]
    assert [outcome.is_error for outcome in outcomes] == [True]
    assert tools.log == ["start 1", "cancel 1"]


async def test_a_call_that_comes_again_waits_until_its_forerunner_is_gone():
    """Both deltas belong to one call; the repaired whole must not run beside what is still being cancelled."""
    log: list[str] = []
    cleaning, cleaned = anyio.Event(), anyio.Event()

    async def execute(call: ToolCall) -> str:
        log.append("start")
        if len(log) == 1:
            try:
                await anyio.sleep_forever()
            finally:
                cleaning.set()
                with anyio.CancelScope(shield=True), anyio.fail_after(30):
                    await cleaned.wait()
                log.append("gone")
        return "second"

    with anyio.fail_after(30):
        async with Dispatcher(execute, CATALOG, protocol="native") as turn:
            turn.feed(Delta(tool_calls=(native(1),)))
            await settled()
            turn.feed(Delta(tool_calls=({"index": 0, "function": {"arguments": "}"}},)))
            await cleaning.wait()
            await turn.finish()
            await settled()
            assert log == ["start"]
            cleaned.set()
            assert await texts(turn) == ["second"]
    assert log == ["start", "gone", "start"]


async def test_cancel_stops_everything_and_drops_every_outcome():
    tools = StagedTools()
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG) as turn:
            turn.feed(search(1) + search(2) + run(3))
            await tools.wait_begun(2)
            tools.release(1)
            await settled()
            turn.cancel()
            assert await texts(turn) == []
            turn.feed(search(4))
            turned = await turn.finish()
            assert turned.is_void
            assert await texts(turn) == []
            await settled()
            assert sorted(tools.log) == ["cancel 2", "end 1", "start 1", "start 2"]


async def test_a_call_that_only_the_end_completes_is_told_but_not_started_after_cancel():
    tools = StagedTools(held=False)
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG, protocol="native") as turn:
            turn.feed(Delta(tool_calls=({"index": 0, "id": "c0", "function": {"name": "web-search"}},)))
            turn.cancel()
            assert [call.tool for call in (await turn.finish()).calls] == ["search"]
            await settled()
    assert tools.log == []


async def test_cancel_wakes_who_waits_for_results():
    tools = StagedTools()
    got: list[list[str]] = []
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG) as turn, anyio.create_task_group() as readers:

            async def read() -> None:
                got.append(await texts(turn))

            readers.start_soon(read)
            turn.feed(search(1))
            await settled()
            turn.cancel()
    assert got == [[]]


async def test_an_outcome_of_a_call_that_ignores_its_cancellation_is_dropped():
    begun, go_on = anyio.Event(), anyio.Event()
    events = Events()

    async def stubborn(call: ToolCall) -> str:
        with anyio.CancelScope(shield=True), anyio.fail_after(30):
            begun.set()
            await go_on.wait()
        return "too late"

    with anyio.fail_after(30):
        async with Dispatcher(stubborn, CATALOG, on_event=events) as turn:
            turn.feed(search(1))
            await begun.wait()
            turn.cancel()
            go_on.set()
            await settled()
            assert await texts(turn) == []
    assert events.told == [("early", 1)]


async def test_leaving_the_turn_cancels_what_runs_and_waits_until_it_is_gone():
    tools = StagedTools()
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG) as turn:
            turn.feed(search(1))
            await tools.wait_begun(1)
        assert tools.log == ["start 1", "cancel 1"]
        assert await texts(turn) == []


async def test_an_error_inside_the_turn_comes_out_as_it_is():
    tools = StagedTools()
    with anyio.fail_after(30), pytest.raises(LookupError, match="the stream broke"):
        async with Dispatcher(tools, CATALOG) as turn:
            turn.feed(search(1))
            await tools.wait_begun(1)
            raise LookupError("the stream broke")
    assert tools.log == ["start 1", "cancel 1"]


async def test_cancellation_from_outside_reaches_the_calls_and_comes_through():
    tools = StagedTools()
    reached = False
    with anyio.fail_after(30), anyio.CancelScope() as outer:
        async with Dispatcher(tools, CATALOG) as turn:
            turn.feed(search(1))
            await tools.wait_begun(1)
            outer.cancel()
            await texts(turn)
            reached = True
    assert outer.cancelled_caught
    assert not reached
    assert tools.log == ["start 1", "cancel 1"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancellation_that_a_library_let_escape_becomes_an_error_and_costs_the_others_nothing():
    async def execute(call: ToolCall) -> str:
        if call.arguments["n"] == 1:
            raise asyncio.CancelledError
        return "fine"

    with anyio.fail_after(30):
        async with Dispatcher(execute, CATALOG) as turn:
            turn.feed(search(1) + search(2))
            await turn.finish()
            assert await texts(turn) == ["it was cancelled", "fine"]


async def test_a_turn_can_be_left_before_its_results_are_read_to_the_end():
    with anyio.fail_after(30):
        async with Dispatcher(StagedTools(held=False), CATALOG) as turn:
            turn.feed(search(1) + search(2))
            await turn.finish()
            async for outcome in turn.results():
                assert outcome.text == "result 1"
                break
