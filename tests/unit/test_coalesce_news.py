"""Progress and log lines of one execution reach every caller that asked, and none of them can trouble another."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest
from shared_calls import AServer, ATask, an_answer, open_flights
from stage import Running, a_spec

from toolhub.model import Call, Result

pytestmark = pytest.mark.anyio

OWN_SESSIONS = a_spec(share="task", stateful=False)


class Talking:
    """Work that says what it is told to, and answers when told to."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.go = anyio.Event()

    async def __call__(self, call: Call) -> Result:
        self.calls.append(call)
        await self.go.wait()
        return an_answer()

    async def progress(self, step: float) -> None:
        report = self.calls[-1].on_progress
        assert report is not None
        await report(step, 9, "working")

    async def log(self, text: str) -> None:
        report = self.calls[-1].on_log
        assert report is not None
        await report({"level": "info", "data": [text]})


class Ear:
    """What one caller heard."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.pause: anyio.Event | None = None

    async def progress(self, step: float, total: float | None, message: str | None) -> None:
        if self.pause is not None:
            await self.pause.wait()
        self.heard.append(step)

    async def log(self, params: dict[str, Any]) -> None:
        self.heard.append(params["data"].pop())


async def raising(*news: Any) -> None:
    raise ValueError("a callback's own trouble")


async def test_every_caller_hears_what_comes_from_then_on():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work = Talking()
        ears = [Ear() for _ in range(3)]
        callers = []
        for number, ear in enumerate(ears):
            callers.append(
                Running(tasks, lambda ear=ear: ATask(flights, work).call(on_progress=ear.progress, on_log=ear.log))
            )
            await anyio.wait_all_tasks_blocked()
            await work.progress(number)
            await work.log(f"line {number}")
        work.go.set()
        for caller in callers:
            await caller.wait()
        everything = [0, "line 0", 1, "line 1", 2, "line 2"]
        assert [ear.heard for ear in ears] == [everything, everything[2:], everything[4:]]
        assert len(work.calls) == 1


async def test_a_callback_that_raises_harms_neither_the_call_nor_any_other(caplog):
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work, ear = Talking(), Ear()
        callers = [
            Running(tasks, lambda heard=heard: ATask(flights, work).call(on_progress=heard))
            for heard in (raising, ear.progress, raising)
        ]
        await anyio.wait_all_tasks_blocked()
        await work.progress(1)
        await work.progress(2)
        work.go.set()
        with caplog.at_level(logging.ERROR, "toolhub.calls"):
            assert [(await caller.wait()).text for caller in callers] == ["done"] * 3
        assert ear.heard == [1, 2]
        assert len(caplog.records) == 4


async def test_a_slow_listener_delays_nobody_else():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work, slow, quick = Talking(), Ear(), Ear()
        slow.pause = anyio.Event()
        delayed = Running(tasks, lambda: ATask(flights, work).call(on_progress=slow.progress))
        other = Running(tasks, lambda: ATask(flights, work).call(on_progress=quick.progress))
        await anyio.wait_all_tasks_blocked()
        for step in range(3):
            await work.progress(step)
        work.go.set()
        assert (await other.wait()).text == "done"
        assert (quick.heard, slow.heard, delayed.is_done) == ([0, 1, 2], [], False)
        slow.pause.set()
        assert (await delayed.wait()).text == "done"
        assert slow.heard == [0, 1, 2]


async def test_a_listener_that_never_listens_keeps_a_bounded_number_of_news():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work, slow = Talking(), Ear()
        slow.pause = anyio.Event()
        caller = Running(tasks, lambda: ATask(flights, work).call(on_progress=slow.progress))
        await anyio.wait_all_tasks_blocked()
        for step in range(5000):
            await work.progress(step)
        await anyio.wait_all_tasks_blocked()
        for step in range(5000, 10_000):
            await work.progress(step)
        slow.pause.set()
        work.go.set()
        await caller.wait()
        assert len(slow.heard) <= 1001
        assert slow.heard[-1] == 9999


async def test_who_left_hears_nothing_more():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work, gone, staying = Talking(), Ear(), Ear()
        leaver = Running(tasks, lambda: ATask(flights, work).call(on_progress=gone.progress))
        stayer = Running(tasks, lambda: ATask(flights, work).call(on_progress=staying.progress))
        await anyio.wait_all_tasks_blocked()
        leaver.cancel()
        await leaver.wait()
        await work.progress(1)
        work.go.set()
        await stayer.wait()
        assert (gone.heard, staying.heard) == ([], [1])


async def test_a_server_is_asked_for_news_only_if_somebody_listens():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work, ear = Talking(), Ear()
        tasks.start_soon(ATask(flights, work).call)
        tasks.start_soon(ATask(flights, work).call)
        await anyio.wait_all_tasks_blocked()
        for _ in range(2):
            tasks.start_soon(lambda: ATask(flights, work).call(on_progress=ear.progress))
        await anyio.wait_all_tasks_blocked()
        assert [call.on_progress is not None for call in work.calls] == [False, True]
        work.go.set()


@pytest.mark.parametrize(("spec", "heard"), [(OWN_SESSIONS, []), (a_spec(share="hub"), ["line"])])
async def test_the_log_of_a_task_s_own_session_is_not_read_to_other_tasks(spec, heard):
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work, own, foreign = Talking(), Ear(), Ear()
        for ear in (own, foreign):
            task = ATask(flights, work, AServer(spec))
            tasks.start_soon(lambda task=task, ear=ear: task.call(on_progress=ear.progress, on_log=ear.log))
            await anyio.wait_all_tasks_blocked()
        await work.log("line")
        await work.progress(1)
        work.go.set()
    assert (own.heard, foreign.heard) == (["line", 1], [*heard, 1])
