"""Admission: places are counted, the queue is bounded, and no place is ever lost."""

from __future__ import annotations

import random

import anyio
import anyio.lowlevel
import pytest
from stage import PATIENCE_S, Running, a_call

from toolhub.errors import Overloaded
from toolhub.layers.admission import Gate, admission
from toolhub.model import Claimant, Result

pytestmark = pytest.mark.anyio


async def stay(gate: Gate, leave: anyio.Event) -> str:
    async with gate.place(Claimant()):
        await leave.wait()
    return "left"


async def test_at_most_limit_are_inside_and_the_rest_enters_in_order():
    gate, order = Gate("g", limit=2, queue=10), []

    async def visit(number: int) -> None:
        async with gate.place(Claimant()):
            order.append(number)
            await leave[number].wait()

    leave = [anyio.Event() for _ in range(5)]
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(visit, number)
            await anyio.wait_all_tasks_blocked()
        assert (order, repr(gate)) == ([0, 1], "<Gate g 2/2 waiting=3>")
        for number in range(5):
            leave[number].set()
            await anyio.wait_all_tasks_blocked()
    assert order == [0, 1, 2, 3, 4]
    assert (gate.in_use, gate.waiting) == (0, 0)


async def test_a_full_queue_refuses_at_once_and_says_so():
    gate, leave = Gate("the hub", limit=1, queue=1), anyio.Event()
    async with anyio.create_task_group() as tasks:
        visitors = [Running(tasks, stay, gate, leave) for _ in range(2)]
        await anyio.wait_all_tasks_blocked()
        refused = Running(tasks, stay, gate, leave)
        await anyio.wait_all_tasks_blocked()
        assert refused.is_done
        assert "the hub is full: 1 calls run and 1 wait" in str(refused.outcome)
        assert (type(refused.outcome), refused.outcome.sent) == (Overloaded, "no")
        leave.set()
        assert [await visitor.wait() for visitor in visitors] == ["left", "left"]
        assert await stay(gate, leave) == "left"


async def test_a_queue_of_zero_takes_what_can_run_and_nothing_else():
    gate, leave = Gate("g", limit=1, queue=0), anyio.Event()
    async with anyio.create_task_group() as tasks:
        Running(tasks, stay, gate, leave)
        await anyio.wait_all_tasks_blocked()
        refused = Running(tasks, stay, gate, leave)
        await anyio.wait_all_tasks_blocked()
        assert isinstance(refused.outcome, Overloaded)
        leave.set()


async def test_a_cancelled_waiter_leaves_the_queue():
    gate, leave = Gate("g", limit=1, queue=1), anyio.Event()
    async with anyio.create_task_group() as tasks:
        Running(tasks, stay, gate, leave)
        await anyio.wait_all_tasks_blocked()
        waiter = Running(tasks, stay, gate, leave)
        await anyio.wait_all_tasks_blocked()
        waiter.cancel()
        assert await waiter.wait() is None
        assert gate.waiting == 0
        successor = Running(tasks, stay, gate, leave)
        leave.set()
        assert await successor.wait() == "left"


async def test_a_waiter_cancelled_in_the_moment_of_its_turn_passes_the_place_on():
    gate, leave = Gate("g", limit=1, queue=5), anyio.Event()
    leave.set()
    async with anyio.create_task_group() as tasks:
        async with gate.place(Claimant()):
            unlucky = Running(tasks, stay, gate, leave)
            await anyio.wait_all_tasks_blocked()
            last = Running(tasks, stay, gate, leave)
            await anyio.wait_all_tasks_blocked()
        unlucky.cancel()  # it was handed the place but has not run since
        assert (await unlucky.wait(), await last.wait()) == (None, "left")
    assert gate.in_use == 0


@pytest.mark.parametrize("seed", range(30))
async def test_no_place_is_lost_under_random_cancellation(seed):
    rng, gate, crowd = random.Random(seed), Gate("g", limit=3, queue=1000), []

    async def visit(steps: int) -> None:
        async with gate.place(Claimant()):
            assert gate.in_use <= 3
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        for _ in range(120):
            crowd.append(Running(tasks, visit, rng.randrange(4)))
            for _ in range(rng.randrange(3)):
                await anyio.lowlevel.checkpoint()
            if rng.random() < 0.5:
                rng.choice(crowd).cancel()
        for visitor in crowd:
            assert await visitor.wait() is None
    assert (gate.in_use, gate.waiting) == (0, 0)
    leave = anyio.Event()
    leave.set()
    assert [await stay(gate, leave) for _ in range(3)] == ["left"] * 3


async def test_a_call_waits_for_its_server_before_it_takes_a_place_in_the_hub():
    hub, gates = Gate("hub", limit=2, queue=9), {"busy": Gate("busy", 1, 9), "free": Gate("free", 1, 9)}
    leave = anyio.Event()

    async def work(call) -> Result:
        await leave.wait()
        return Result({})

    handle = admission(lambda call: (gates[call.tool], hub))(work)
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(handle, a_call("busy"))
        await anyio.wait_all_tasks_blocked()
        assert hub.in_use == 1
        tasks.start_soon(handle, a_call("free"))
        with anyio.fail_after(PATIENCE_S):
            await anyio.wait_all_tasks_blocked()
        assert (hub.in_use, hub.waiting, gates["busy"].waiting) == (2, 0, 4)
        leave.set()
