"""When calls start, in which order they run, and how their outcomes come back."""

from __future__ import annotations

import anyio
import pytest
from toolhub_agent.errors import ToolFailed
from toolhub_agent.tool_calls import CallEvent, CallStarted, Dispatcher
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
    xml,
)

pytestmark = pytest.mark.anyio


async def test_a_call_runs_and_ends_while_the_stream_still_goes_on():
    tools, events = StagedTools(), Events()
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG, on_event=events) as turn:
            turn.feed("First " + search(1))
            await tools.wait_begun(1)  # the stream is still open here
            tools.release(1)
            outcome = await anext(turn.results())
            assert (outcome.text, outcome.started_early) == ("result 1", True)
            turn.feed("and then " + search(2))
            tools.release(2)
            turned = await turn.finish()
            assert [call.index for call in turned.calls] == [0, 1]
            assert await texts(turn) == ["result 1", "result 2"]
    assert events.told[:2] == [("early", 1), ("finished", 1)]


async def test_a_call_starts_with_the_character_that_closes_it():
    tools = StagedTools()
    text = search(1).rstrip()
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG) as turn:
            turn.feed(text[:-1])
            await settled()
            assert tools.log == []
            turn.feed(text[-1])
            await settled()
            assert tools.log == ["start 1"]


async def test_what_may_change_something_waits_for_the_end_of_the_turn():
    tools, events = StagedTools(held=False), Events()
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG, on_event=events) as turn:
            turn.feed(run(1) + search(2))
            await settled()
            assert tools.log == ["start 2", "end 2"]
            await turn.finish()
            outcomes = [outcome async for outcome in turn.results()]
    assert [(outcome.text, outcome.started_early) for outcome in outcomes] == [("result 1", False), ("result 2", True)]
    assert events.told == [("early", 2), ("finished", 2), ("started", 1), ("finished", 1)]


@pytest.mark.parametrize(
    ("eager", "early"), [("none", []), ("read_only", ["start 2"]), ("all", ["start 1", "start 2"])]
)
async def test_eager_decides_what_starts_before_the_end(eager, early):
    tools = StagedTools()
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG, eager=eager) as turn:
            turn.feed(run(1) + search(2))
            await settled()
            assert sorted(tools.log) == early
            await turn.finish()
            await settled()
            assert sorted(tools.log) == ["start 1", "start 2"]


async def test_a_native_call_that_may_change_something_starts_early_only_once_it_is_sealed():
    tools = StagedTools()
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG, protocol="native", eager="all") as turn:
            turn.feed(Delta(tool_calls=(native(1, name="sh-run"),)))
            await settled()
            assert tools.log == []
            turn.feed(Delta(tool_calls=({"index": 1, "id": "c1", "function": {"name": "web-search"}},)))
            await settled()
            assert tools.log == ["start 1"]


async def test_results_come_in_call_order_whichever_ends_first():
    tools = StagedTools()
    got: list[str] = []
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG) as turn, anyio.create_task_group() as readers:

            async def read() -> None:
                async for outcome in turn.results():
                    got.append(outcome.text)  # noqa: PERF401 - one by one is what is looked at

            turn.feed(search(1) + search(2) + search(3))
            await turn.finish()
            readers.start_soon(read)
            tools.release(3, 2)
            await settled()
            assert got == []
            tools.release(1)
    assert got == ["result 1", "result 2", "result 3"]


async def test_results_come_as_completed_if_asked():
    tools = StagedTools()
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG, order="completed") as turn:
            turn.feed(search(1) + search(2) + search(3))
            await turn.finish()
            results = turn.results()
            for name in (3, 1, 2):
                tools.release(name)
                assert (await anext(results)).text == f"result {name}"
            with pytest.raises(StopAsyncIteration):
                await anext(results)


async def test_results_may_be_read_by_another_task_during_the_stream():
    tools = StagedTools(held=False)
    got: list[str] = []
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG) as turn, anyio.create_task_group() as readers:

            async def read() -> None:
                async for outcome in turn.results():
                    got.append(outcome.text)  # noqa: PERF401 - one by one is what is looked at
                got.append("over")

            readers.start_soon(read)
            turn.feed(search(1))
            await settled()
            assert got == ["result 1"]
            turn.feed(search(2))
            await settled()
            assert got == ["result 1", "result 2"]
            await turn.finish()
    assert got == ["result 1", "result 2", "over"]


async def test_a_turn_without_calls_has_no_results():
    with anyio.fail_after(30):
        async with Dispatcher(StagedTools(), CATALOG) as turn:
            turn.feed("The answer is 42.")
            turned = await turn.finish()
            assert (turned.calls, turned.problem, turned.is_void) == ((), None, False)
            assert await texts(turn) == []


async def test_changes_of_one_server_run_one_after_another_and_others_beside_them():
    tools = StagedTools()
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG) as turn:
            turn.feed(run("a") + run("b") + xml("files", "write", "c"))
            await turn.finish()
            await settled()
            assert sorted(tools.log) == ["start a", "start c"]
            tools.release("a")
            await tools.wait_begun("b")
            assert tools.log.index("end a") < tools.log.index("start b")


async def test_a_read_sees_the_changes_written_before_it_and_overlaps_with_other_reads():
    tools = StagedTools()
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG) as turn:
            turn.feed(xml("sh", "look", "r0") + run("w") + xml("sh", "look", "r1") + xml("sh", "look", "r2"))
            await settled()
            assert tools.log == ["start r0"]
            await turn.finish()
            await settled()
            assert tools.log == ["start r0", "start w"]
            tools.release("w")
            await settled()
            assert tools.log[2] == "end w"
            assert sorted(tools.log[3:]) == ["start r1", "start r2"]


async def test_sub_agents_of_one_kind_work_side_by_side_but_not_before_the_end():
    tools = StagedTools()
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG) as turn:
            turn.feed(xml("agent-browsing", "search_and_browse", 1) + xml("agent-browsing", "search_and_browse", 2))
            await settled()
            assert tools.log == []
            await turn.finish()
            await settled()
            assert sorted(tools.log) == ["start 1", "start 2"]


async def test_no_more_calls_run_at_once_than_parallel_allows():
    tools = StagedTools()
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG, parallel=2) as turn:
            turn.feed(search(1) + search(2) + search(3))
            await settled()
            assert len(tools.log) == 2
            tools.release(tools.calls[0].arguments["n"])
            await settled()
            assert [line.split()[0] for line in tools.log] == ["start", "start", "end", "start"]
            tools.release(1, 2, 3)
            await turn.finish()
            assert await texts(turn) == ["result 1", "result 2", "result 3"]


async def test_one_slot_is_enough_for_calls_that_wait_for_each_other():
    tools = StagedTools(held=False)
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG, parallel=1) as turn:
            turn.feed(run(1) + xml("sh", "look", 2) + run(3))
            await turn.finish()
            assert await texts(turn) == ["result 1", "result 2", "result 3"]


async def test_a_call_is_executed_by_its_corrected_name():
    tools = StagedTools(held=False)
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG) as turn:
            turn.feed(xml("google", "search", 1))
            await settled()
            assert [(call.server, call.tool) for call in tools.calls] == [("web", "search")]
            assert (await turn.finish()).calls[0].server == "web"


async def test_a_call_with_a_problem_becomes_an_error_and_is_not_executed():
    tools = StagedTools(held=False)
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG) as turn:
            turn.feed(search(1).replace('{"n": 1}', "[1]") + search(2))
            await turn.finish()
            outcomes = [outcome async for outcome in turn.results()]
    assert [outcome.is_error for outcome in outcomes] == [True, False]
    assert outcomes[0].text == "the arguments must be a JSON object, not a list"
    assert tools.log == ["start 2", "end 2"]


@pytest.mark.parametrize(
    ("error", "text"),
    [(RuntimeError("no luck"), "no luck"), (TimeoutError(), "TimeoutError"), (ValueError("x" * 9000), "x" * 4000)],
)
async def test_an_exception_of_a_call_becomes_its_error_and_costs_the_others_nothing(error, text):
    async def execute(call: ToolCall) -> str:
        if call.arguments["n"] == 1:
            raise error
        return "fine"

    with anyio.fail_after(30):
        async with Dispatcher(execute, CATALOG) as turn:
            turn.feed(search(1) + search(2))
            await turn.finish()
            outcomes = [outcome async for outcome in turn.results()]
    assert [(outcome.text, outcome.is_error) for outcome in outcomes] == [
        (text, True),
        ("fine", False),
    ]


async def test_a_result_that_is_not_text_becomes_an_error_too():
    async def execute(call: ToolCall) -> str:
        return None

    with anyio.fail_after(30):
        async with Dispatcher(execute, CATALOG) as turn:
            turn.feed(search(1))
            await turn.finish()
            (outcome,) = [outcome async for outcome in turn.results()]
    assert (outcome.text, outcome.is_error) == ("execute returned NoneType, not the text of a result", True)


async def test_a_failed_tool_s_own_text_is_not_shortened():
    async def execute(call: ToolCall) -> str:
        raise ToolFailed("x" * 9000)

    with anyio.fail_after(30):
        async with Dispatcher(execute, CATALOG) as turn:
            turn.feed(search(1))
            await turn.finish()
            (outcome,) = [outcome async for outcome in turn.results()]
    assert (len(outcome.text), outcome.is_error) == (9000, True)


async def test_a_call_waits_for_its_observer():
    told, go_on = anyio.Event(), anyio.Event()
    tools = StagedTools(held=False)

    async def observe(event: CallEvent) -> None:
        if isinstance(event, CallStarted):
            told.set()
            await go_on.wait()

    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG, on_event=observe) as turn:
            turn.feed(search(1))
            await told.wait()
            await settled()
            assert tools.log == []
            go_on.set()
            await turn.finish()
            assert await texts(turn) == ["result 1"]


async def test_an_observer_that_raises_costs_no_result():
    def observe(event: object) -> None:
        raise RuntimeError("a broken observer")

    with anyio.fail_after(30):
        async with Dispatcher(StagedTools(held=False), CATALOG, on_event=observe) as turn:
            turn.feed(search(1))
            await turn.finish()
            assert await texts(turn) == ["result 1"]


async def test_the_calls_can_be_looked_at_before_the_rest_is_started():
    tools = StagedTools(held=False)
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG) as turn:
            turn.feed(run(1))
            assert [call.tool for call in (await turn.finish(run=False)).calls] == ["run"]
            await settled()
            assert tools.log == []
            await turn.finish()
            assert await texts(turn) == ["result 1"]


async def test_a_dispatched_call_starts_at_once_and_its_inline_repeat_does_not_start_it_again():
    tools = StagedTools()
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG, protocol="native") as turn:
            turn.feed(Delta(dispatched={"choice_index": 0, "tool_call": native(1)}))
            await tools.wait_begun(1)
            turn.feed(Delta(tool_calls=(native(1),)))
            tools.release(1)
            turned = await turn.finish()
            assert await texts(turn) == ["result 1"]
    assert tools.log == ["start 1", "end 1"]
    assert [call["id"] for call in turned.native] == ["c0"]


async def test_text_of_a_native_turn_and_deltas_of_an_xml_turn_are_no_calls():
    tools = StagedTools(held=False)
    with anyio.fail_after(30):
        async with Dispatcher(tools, CATALOG, protocol="native") as turn:
            turn.feed(search(1))
            assert (await turn.finish()).calls == ()
        async with Dispatcher(tools, CATALOG) as turn:
            turn.feed(Delta(tool_calls=(native(1),), reasoning=search(2)))
            assert (await turn.finish()).calls == ()
    assert tools.log == []
