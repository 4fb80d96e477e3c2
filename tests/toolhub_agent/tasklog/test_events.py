"""The events by which MiroFlow's front ends follow a task."""

from __future__ import annotations

import asyncio
import queue

import pytest
from toolhub_agent.events import StreamEvents

pytestmark = pytest.mark.anyio


def all_of(events: queue.Queue) -> list:
    return [events.get_nowait() for _ in range(events.qsize())]


async def test_a_task_s_events_their_fields_and_their_order():
    sink: queue.Queue = queue.Queue()
    events = StreamEvents(sink)
    workflow = await events.start_of_workflow("Who?")
    agent = await events.start_of_agent("main")
    await events.start_of_llm("main", "Summarizing")
    await events.message("m1", "Hel")
    await events.show_text("I search.")
    await events.end_of_llm("main")
    await events.end_of_agent("main", agent)
    await events.end_of_workflow(workflow)
    await events.end()
    sent = all_of(sink)
    shown = sent[4]["data"].pop("tool_call_id")
    assert sent == [
        {
            "event": "start_of_workflow",
            "data": {"workflow_id": workflow, "input": [{"role": "user", "content": "Who?"}]},
        },
        {"event": "start_of_agent", "data": {"agent_name": "main", "display_name": None, "agent_id": agent}},
        {"event": "start_of_llm", "data": {"agent_name": "main", "display_name": "Summarizing"}},
        {"event": "message", "data": {"message_id": "m1", "delta": {"content": "Hel"}}},
        {"event": "tool_call", "data": {"tool_name": "show_text", "tool_input": {"text": "I search."}}},
        {"event": "end_of_llm", "data": {"agent_name": "main"}},
        {"event": "end_of_agent", "data": {"agent_name": "main", "agent_id": agent}},
        {"event": "end_of_workflow", "data": {"workflow_id": workflow}},
        None,
    ]
    assert len({workflow, agent, shown}) == 3


async def test_a_call_is_two_events_with_one_id():
    sink: queue.Queue = queue.Queue()
    events = StreamEvents(sink)
    call = await events.tool_call("google_search", {"q": "x"})
    await events.tool_result("google_search", "found", call=call)
    assert [list(event["data"]) for event in list(sink.queue)] == [["tool_call_id", "tool_name", "tool_input"]] * 2
    assert [event["data"] for event in all_of(sink)] == [
        {"tool_call_id": call, "tool_name": "google_search", "tool_input": {"q": "x"}},
        {"tool_call_id": call, "tool_name": "google_search", "tool_input": {"result": "found"}},
    ]


async def test_an_error_ends_the_stream_and_nothing_follows_none():
    sink: queue.Queue = queue.Queue()
    events = StreamEvents(sink)
    await events.show_error("no model server")
    await events.show_text("late")
    await events.end()
    error, end = all_of(sink)
    assert (error["data"]["tool_name"], error["data"]["tool_input"]) == ("show_error", {"error": "no model server"})
    assert end is None


async def test_a_queue_whose_put_must_be_awaited_holds_the_sender_until_there_is_room():
    sink: asyncio.Queue = asyncio.Queue(maxsize=1)
    events = StreamEvents(sink)
    await events.message("m", "1")
    sender = asyncio.create_task(events.message("m", "2"))
    while not sink._putters:  # type: ignore[attr-defined]  # typeshed has no private names
        await asyncio.sleep(0)
    assert (await sink.get())["data"]["delta"] == {"content": "1"}
    await sender
    assert (await sink.get())["data"]["delta"] == {"content": "2"}


class Refuses:
    def __init__(self) -> None:
        self.asked = 0

    def put(self, item: object) -> None:
        self.asked += 1
        raise RuntimeError("closed")


async def test_a_queue_that_fails_is_given_up_and_the_task_goes_on(caplog):
    sink = Refuses()
    events = StreamEvents(sink)
    assert await events.tool_call("t", {})
    await events.end()
    assert sink.asked == 1
    assert len(caplog.records) == 1


async def test_without_a_queue_nothing_is_sent():
    events = StreamEvents()
    assert await events.start_of_workflow("Who?")
    await events.show_error("x")
