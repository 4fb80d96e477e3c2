"""Admission: places are counted, the queue is bounded, and no place is ever lost."""

from __future__ import annotations

import random
from collections import Counter

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_memory_hub import WAIT_TIMEOUT_S, a_call, virtual_time
from running import Running

from toolhub.errors import Overloaded
from toolhub.layers.admission import admission
from toolhub.limits.limiter import ConcurrencyLimiter
from toolhub.model import FairShareKey, Result

pytestmark = pytest.mark.anyio


async def stay(limiter: ConcurrencyLimiter, leave: anyio.Event) -> str:
    async with limiter.place(FairShareKey()):
        await leave.wait()
    return "left"


async def test_at_most_limit_are_inside_and_the_rest_enters_in_order():
    limiter, order = ConcurrencyLimiter("g", limit=2, queue=10), []

    async def visit(number: int) -> None:
        async with limiter.place(FairShareKey()):
            order.append(number)
            await leave[number].wait()

    leave = [anyio.Event() for _ in range(5)]
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(visit, number)
            await anyio.wait_all_tasks_blocked()
        assert (order, repr(limiter)) == ([0, 1], "<ConcurrencyLimiter g 2/2 waiting=3>")
        for number in range(5):
            leave[number].set()
            await anyio.wait_all_tasks_blocked()
    assert order == [0, 1, 2, 3, 4]
    assert (limiter.in_use, limiter.waiting) == (0, 0)


async def test_a_full_queue_refuses_at_once_and_says_so():
    limiter, leave = ConcurrencyLimiter("the hub", limit=1, queue=1), anyio.Event()
    async with anyio.create_task_group() as tasks:
        visitors = [Running(tasks, stay, limiter, leave) for _ in range(2)]
        await anyio.wait_all_tasks_blocked()
        refused = Running(tasks, stay, limiter, leave)
        await anyio.wait_all_tasks_blocked()
        assert refused.is_done
        assert "the hub is full: 1 calls run and 1 wait" in str(refused.outcome)
        assert (type(refused.outcome), refused.outcome.sent) == (Overloaded, "no")
        leave.set()
        assert [await visitor.wait() for visitor in visitors] == ["left", "left"]
        assert await stay(limiter, leave) == "left"


async def test_a_queue_of_zero_takes_what_can_run_and_nothing_else():
    limiter, leave = ConcurrencyLimiter("g", limit=1, queue=0), anyio.Event()
    async with anyio.create_task_group() as tasks:
        Running(tasks, stay, limiter, leave)
        await anyio.wait_all_tasks_blocked()
        refused = Running(tasks, stay, limiter, leave)
        await anyio.wait_all_tasks_blocked()
        assert isinstance(refused.outcome, Overloaded)
        leave.set()


async def test_a_cancelled_waiter_leaves_the_queue():
    limiter, leave = ConcurrencyLimiter("g", limit=1, queue=1), anyio.Event()
    async with anyio.create_task_group() as tasks:
        Running(tasks, stay, limiter, leave)
        await anyio.wait_all_tasks_blocked()
        waiter = Running(tasks, stay, limiter, leave)
        await anyio.wait_all_tasks_blocked()
        waiter.cancel()
        assert await waiter.wait() is None
        assert limiter.waiting == 0
        successor = Running(tasks, stay, limiter, leave)
        leave.set()
        assert await successor.wait() == "left"


async def test_a_waiter_cancelled_in_the_moment_of_its_turn_passes_the_place_on():
    limiter, leave = ConcurrencyLimiter("g", limit=1, queue=5), anyio.Event()
    leave.set()
    async with anyio.create_task_group() as tasks:
        async with limiter.place(FairShareKey()):
            unlucky = Running(tasks, stay, limiter, leave)
            await anyio.wait_all_tasks_blocked()
            last = Running(tasks, stay, limiter, leave)
            await anyio.wait_all_tasks_blocked()
        unlucky.cancel()  # it was handed the place but has not run since
        assert (await unlucky.wait(), await last.wait()) == (None, "left")
    assert limiter.in_use == 0


@pytest.mark.parametrize("seed", range(30))
async def test_no_place_is_lost_under_random_cancellation(seed):
    rng, limiter, crowd = random.Random(seed), ConcurrencyLimiter("g", limit=3, queue=1000), []

    async def visit(steps: int) -> None:
        async with limiter.place(FairShareKey()):
            assert limiter.in_use <= 3
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
    assert (limiter.in_use, limiter.waiting) == (0, 0)
    leave = anyio.Event()
    leave.set()
    assert [await stay(limiter, leave) for _ in range(3)] == ["left"] * 3


async def test_a_call_waits_for_its_server_before_it_takes_a_place_in_the_hub():
    hub, limiters = (
        ConcurrencyLimiter("hub", limit=2, queue=9),
        {"busy": ConcurrencyLimiter("busy", 1, 9), "free": ConcurrencyLimiter("free", 1, 9)},
    )
    leave = anyio.Event()

    async def work(call) -> Result:
        await leave.wait()
        return Result({})

    handle = admission(lambda call: (limiters[call.tool], hub))(work)
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(handle, a_call("busy"))
        await anyio.wait_all_tasks_blocked()
        assert hub.in_use == 1
        tasks.start_soon(handle, a_call("free"))
        with anyio.fail_after(WAIT_TIMEOUT_S):
            await anyio.wait_all_tasks_blocked()
        assert (hub.in_use, hub.waiting, limiters["busy"].waiting) == (2, 0, 4)
        leave.set()


# --- fairness -------------------------------------------------------------------------------------------------------


async def crowd(limiter: ConcurrencyLimiter, queued: dict[str, int], runs: dict[str, FairShareKey]) -> list[str]:
    """The order in which calls are let in that all wait when the only place becomes free."""
    order: list[str] = []

    async def visit(name: str) -> None:
        async with limiter.place(runs[name]):
            order.append(name)

    async with anyio.create_task_group() as tasks:
        async with limiter.place(FairShareKey("first")):
            for name, length in queued.items():
                for _ in range(length):
                    tasks.start_soon(visit, name)
            await anyio.wait_all_tasks_blocked()
            assert limiter.waiting == sum(queued.values())
    return order


async def test_a_burst_of_one_task_does_not_keep_another_waiting():
    runs = {"noisy": FairShareKey("noisy", "r"), "quiet": FairShareKey("quiet", "r")}
    order = await crowd(ConcurrencyLimiter("g", 1, 9999), {"noisy": 1000, "quiet": 3}, runs)
    assert order[:6].count("quiet") == 3


async def test_runs_share_by_weight_however_many_tasks_they_have():
    runs = {f"a{number}": FairShareKey(f"a{number}", "a") for number in range(8)}
    runs["b"] = FairShareKey("b", "b", run_weight=2)
    order = await crowd(ConcurrencyLimiter("g", 1, 9999), {**dict.fromkeys(runs, 10), "b": 60}, runs)
    assert Counter("b" if name == "b" else "a" for name in order[:60]) == {"a": 20, "b": 40}


async def test_a_full_queue_makes_room_for_who_queued_less():
    limiter, leave = ConcurrencyLimiter("g", limit=1, queue=3), anyio.Event()
    noisy, quiet = FairShareKey("noisy"), FairShareKey("quiet")

    async def visit(who: FairShareKey) -> str:
        async with limiter.place(who):
            await leave.wait()
        return "left"

    async with anyio.create_task_group() as tasks:
        crowd_of_noisy = []
        for _ in range(4):
            crowd_of_noisy.append(Running(tasks, visit, noisy))
            await anyio.wait_all_tasks_blocked()
        late = Running(tasks, visit, quiet)
        await anyio.wait_all_tasks_blocked()
        assert [visitor.is_done for visitor in crowd_of_noisy] == [False, False, False, True]
        assert isinstance(crowd_of_noisy[-1].outcome, Overloaded)
        assert "your task queued most of them" in str(crowd_of_noisy[-1].outcome)
        another = Running(tasks, visit, noisy)
        await anyio.wait_all_tasks_blocked()
        assert "its queue of 3 is full" in str(another.outcome)
        leave.set()
        assert await late.wait() == "left"
    assert limiter.statistics().refusals == 2
    assert (limiter.in_use, limiter.waiting) == (0, 0)


# --- deadlines ------------------------------------------------------------------------------------------------------


async def experienced(limiter: ConcurrencyLimiter, seconds: float) -> None:
    """Let the limiter learn that a place is held for so long."""
    for _ in range(20):
        assert limiter.try_enter()
        limiter.leave(seconds)


async def test_a_call_whose_turn_would_come_too_late_is_refused_at_once_with_an_estimate():
    limiter, leave = ConcurrencyLimiter("g", limit=2, queue=100), anyio.Event()
    await experienced(limiter, 4.0)
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(stay, limiter, leave)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Overloaded, match=r"would get a place in about 8\.0 s, after its deadline") as refusal:
            await limiter.wait(FairShareKey(), anyio.current_time() + 7)
        assert refusal.value.retry_after == 8.0
        patient = Running(tasks, limiter.wait, FairShareKey(), anyio.current_time() + 9)
        await anyio.wait_all_tasks_blocked()
        assert limiter.waiting == 4
        leave.set()
        assert await patient.wait() is None
        limiter.leave()


async def test_another_tasks_burst_does_not_count_against_ones_own_deadline():
    limiter, leave = ConcurrencyLimiter("g", limit=1, queue=2000), anyio.Event()
    await experienced(limiter, 1.0)
    async with anyio.create_task_group() as tasks:
        for _ in range(1000):
            tasks.start_soon(stay, limiter, leave)
        await anyio.wait_all_tasks_blocked()
        assert limiter.expected_wait(FairShareKey("quiet")) == 2.0
        assert limiter.expected_wait(FairShareKey()) == 1000.0
        leave.set()


async def test_a_gate_that_knows_too_little_refuses_nobody_for_lateness():
    limiter, leave = ConcurrencyLimiter("g", limit=1, queue=9), anyio.Event()
    limiter.try_enter()
    limiter.leave(1000.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stay, limiter, leave)
        await anyio.wait_all_tasks_blocked()
        waiter = Running(tasks, limiter.wait, FairShareKey(), anyio.current_time() + 1)
        await anyio.wait_all_tasks_blocked()
        assert not waiter.is_done
        leave.set()
        assert await waiter.wait() is None
        limiter.leave()


# --- no permit is ever lost -----------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.sampled_from(["enter", "enter", "leave", "fail", "cancel", "pause"]),
        st.sampled_from("ab"),
        st.integers(0, 99),
    ),
    max_size=60,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps, st.integers(1, 3), st.integers(0, 4))
def test_no_permit_is_ever_lost_or_made_whatever_happens_when(steps, limit, queue):
    name, options = virtual_time()
    anyio.run(act, steps, limit, queue, backend=name, backend_options=options)


async def act(steps, limit, queue) -> None:
    limiters = [ConcurrencyLimiter("first", limit, queue), ConcurrencyLimiter("second", 2, queue)]
    inside: list[tuple[anyio.Event, Running]] = []

    async def visit(who: FairShareKey, leave: anyio.Event, errors: list[str]) -> Result:
        async def work(call) -> Result:
            assert all(limiter.in_use <= limiter.limit for limiter in limiters)
            await leave.wait()
            if errors:
                raise ValueError(errors[0])
            return Result({})

        return await admission(lambda call: limiters)(work)(a_call(share_key=who))

    async with anyio.create_task_group() as tasks:
        failing: list[list[str]] = []
        for step, run, choice in steps:
            if step == "enter":
                leave, errors = anyio.Event(), []
                failing.append(errors)
                inside.append((leave, Running(tasks, visit, FairShareKey(f"{run}{choice % 3}", run), leave, errors)))
            elif step == "pause":
                await anyio.wait_all_tasks_blocked()
            elif inside:
                number = choice % len(inside)
                if step == "cancel":
                    inside[number][1].cancel()
                else:
                    failing[number] += ["broken"] * (step == "fail")
                    inside[number][0].set()
        for leave, _ in inside:
            leave.set()
        for _, visitor in inside:
            await visitor.wait()
            assert isinstance(visitor.outcome, Result | Overloaded | ValueError | None)
    assert [(limiter.in_use, limiter.waiting) for limiter in limiters] == [(0, 0), (0, 0)]
