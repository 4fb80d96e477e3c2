"""Two peers on one wire: who asks is answered, whatever else happens on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import MCPError
from mcp.shared.dispatcher import CallOptions
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT
from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from toolhub.channel.jsonrpc.in_process import in_process_pair
from toolhub.channel.jsonrpc.peer import Peer

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Waiting is done in a way of its own on asyncio."""
    return str(request.param)


Json = dict[str, Any]
Params = Mapping[str, Any] | None


class Side:
    """A peer whose handler is a few methods; what it was asked and told is kept."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.asked: list[Params] = []
        self.told: list[tuple[str, Params]] = []
        self.began = anyio.Event()
        self.limiters = {number: anyio.Event() for number in range(10)}
        self.was_cancelled = anyio.Event()

    async def on_request(self, asked: Any, method: str, params: Params) -> Json:
        self.asked.append(params)
        self.began.set()
        given = dict(params or {})
        if method == "wait":
            try:
                await self.limiters[given["number"]].wait()
            finally:
                self.was_cancelled.set()
        elif method == "raise":
            raise ValueError("detail")
        elif method == "refuse":
            raise MCPError(code=7, message="no", data=[1])
        elif method == "ask back":
            return {"answer": await asked.send_raw_request("echo", {"from": "the handler"})}
        elif method == "count":
            for number in range(1, given["to"] + 1):
                await asked.progress(number, given["to"])
        return given

    async def on_notify(self, asked: Any, method: str, params: Params) -> None:
        self.told.append((method, params))


@asynccontextmanager
async def sides() -> AsyncIterator[tuple[Side, Side]]:
    """Two that talk; leaving ends both."""
    near_end, far_end = in_process_pair()
    near, far = Side(Peer(near_end, near_end)), Side(Peer(far_end, far_end))
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            await tasks.start(far.peer.run, far.on_request, far.on_notify)
            await tasks.start(near.peer.run, near.on_request, near.on_notify)
            yield near, far
            tasks.cancel_scope.cancel()


async def test_answers_find_their_requests_in_any_order() -> None:
    answers: dict[int, Json] = {}

    async def ask(near: Side, number: int) -> None:
        answers[number] = await near.peer.send_raw_request("wait", {"number": number})

    async with sides() as (near, far):
        async with anyio.create_task_group() as callers:
            for number in range(3):
                callers.start_soon(ask, near, number)
            await anyio.wait_all_tasks_blocked()
            for number in (2, 0, 1):
                far.limiters[number].set()
                await anyio.wait_all_tasks_blocked()
    assert list(answers) == [2, 0, 1]
    assert all(answer == {"number": number} for number, answer in answers.items())


async def test_both_sides_may_ask_at_once() -> None:
    async with sides() as (near, far):
        assert await near.peer.send_raw_request("ask back", None) == {"answer": {"from": "the handler"}}
        assert near.asked == [{"from": "the handler"}]


async def test_a_handlers_exception_is_an_error_for_who_asked() -> None:
    async with sides() as (near, _):
        with pytest.raises(MCPError) as refused:
            await near.peer.send_raw_request("refuse", None)
        with pytest.raises(MCPError) as crashed:
            await near.peer.send_raw_request("raise", None)
        assert await near.peer.send_raw_request("echo", {"still": "here"}) == {"still": "here"}
    assert (refused.value.code, refused.value.message, refused.value.error.data) == (7, "no", [1])
    assert (crashed.value.code, crashed.value.message) == (0, "detail")


async def test_a_cancelled_request_cancels_its_handler_and_is_not_answered() -> None:
    async with sides() as (near, far):
        async with anyio.create_task_group() as callers:
            callers.start_soon(near.peer.send_raw_request, "wait", {"number": 0})
            await far.began.wait()
            callers.cancel_scope.cancel()
        await far.was_cancelled.wait()
        await anyio.wait_all_tasks_blocked()
        assert far.told == [("notifications/cancelled", {"requestId": 1, "reason": "caller cancelled"})]
        assert await near.peer.send_raw_request("echo", {"n": 2}) == {"n": 2}


async def test_a_request_that_must_not_be_cancelled_is_abandoned_in_silence() -> None:
    async with sides() as (near, far):
        with pytest.raises(MCPError) as caught:
            await near.peer.send_raw_request("wait", {"number": 0}, {"timeout": 0, "cancel_on_abandon": False})
        assert caught.value.code == REQUEST_TIMEOUT
        await anyio.wait_all_tasks_blocked()
        assert far.told == [] and not far.was_cancelled.is_set()


async def test_what_is_cancelled_already_never_reaches_the_other_side() -> None:
    async with sides() as (near, far):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await near.peer.send_raw_request("echo", {"n": 1})
        assert scope.cancelled_caught
        await near.peer.send_raw_request("echo", {"n": 2})
        assert far.asked == [{"n": 2}] and far.told == []


async def test_the_end_of_the_other_side_ends_every_request_and_is_told_once() -> None:
    codes: list[int] = []

    async def ask(near: Side) -> None:
        with pytest.raises(MCPError) as caught:
            await near.peer.send_raw_request("wait", {"number": 0})
        codes.append(caught.value.code)

    near_end, far_end = in_process_pair()
    near, far = Side(Peer(near_end, near_end)), Side(Peer(far_end, far_end))
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks, anyio.create_task_group() as far_tasks:
            await far_tasks.start(far.peer.run, far.on_request, far.on_notify)
            await tasks.start(near.peer.run, near.on_request, near.on_notify)
            tasks.start_soon(ask, near)
            tasks.start_soon(ask, near)
            await far.began.wait()
            far_tasks.cancel_scope.cancel()
            await near.peer.ended.wait()
        with pytest.raises(MCPError) as late:
            await near.peer.send_raw_request("echo", None)
    assert codes == [CONNECTION_CLOSED] * 2 and late.value.code == CONNECTION_CLOSED
    await near.peer.notify("too late", None)


async def test_progress_goes_to_the_request_it_belongs_to() -> None:
    seen: dict[str, list[float]] = {"a": [], "b": []}

    async def count(near: Side, name: str, to: int) -> None:
        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            seen[name].append(progress)

        await near.peer.send_raw_request("count", {"to": to}, {"on_progress": on_progress})

    async with sides() as (near, _), anyio.create_task_group() as callers:
        callers.start_soon(count, near, "a", 2)
        callers.start_soon(count, near, "b", 3)
    assert {name: sorted(steps) for name, steps in seen.items()} == {"a": [1, 2], "b": [1, 2, 3]}


async def test_a_number_that_comes_back_as_text_still_finds_its_request() -> None:
    async with sides() as (near, _):
        answer = await near.peer.send_raw_request("echo", {"n": 1}, {"request_id": "7"})
        assert answer == {"n": 1}
        options: CallOptions = {"request_id": "7"}
        async with anyio.create_task_group() as callers:
            callers.start_soon(near.peer.send_raw_request, "wait", {"number": 0}, options)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(ValueError, match="already in flight"):
                await near.peer.send_raw_request("echo", None, {"request_id": 7})
            callers.cancel_scope.cancel()


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        {},
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "id": 1, "result": None},
        {"jsonrpc": "2.0", "id": 1, "result": []},
        {"jsonrpc": "2.0", "id": None, "result": {}},
        {"jsonrpc": "2.0", "id": [], "result": {}},
        {"jsonrpc": "2.0", "id": 1, "error": "text"},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": "x", "message": ""}},
        {"jsonrpc": "2.0", "method": 3},
        {"jsonrpc": "2.0", "method": "m", "params": []},
        {"jsonrpc": "2.0", "id": {}, "method": "m"},
        {"jsonrpc": "1.0", "method": "m"},
        {"method": "m"},
    ],
    ids=repr,
)
async def test_what_is_no_message_is_said_to_be_none_and_harms_nobody(message: Any) -> None:
    async with sides() as (near, far), anyio.create_task_group() as callers:
        callers.start_soon(near.peer.send_raw_request, "wait", {"number": 0})
        await far.began.wait()
        assert near.peer._take(message) is False
        far.limiters[0].set()


@pytest.mark.parametrize("late", [{"id": 99, "result": {}}, {"id": 99, "error": {"code": 1, "message": ""}}], ids=repr)
async def test_an_answer_that_nobody_waits_for_is_a_message_and_dropped(late: Json) -> None:
    async with sides() as (near, _):
        assert near.peer._take({"jsonrpc": "2.0", **late}) is True


async def test_a_trace_travels_with_the_request_and_without_one_nothing_is_added() -> None:
    parent = SpanContext(0x1234, 0x5678, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    async with sides() as (near, far):
        await near.peer.send_raw_request("echo", {"n": 1})
        token = otel_context.attach(otel.set_span_in_context(NonRecordingSpan(parent)))
        try:
            await near.peer.send_raw_request("echo", {"n": 2, "_meta": {"own": 1}})
        finally:
            otel_context.detach(token)
    untraced, traced = far.asked
    assert untraced == {"n": 1}
    assert traced is not None
    assert traced["_meta"] == {"own": 1, "traceparent": f"00-{0x1234:032x}-{0x5678:016x}-01"}
