"""Equal calls in flight are made once; a leader's failure is the leader's alone."""

from __future__ import annotations

import random

import anyio
import pytest
from equal_calls import ACT, READ, SET, AServer, ATask, Work, an_answer, open_coalescer
from in_memory_hub import a_spec, virtual_time
from running import Running

from toolhub.errors import CallTimeout, Overloaded, SessionLost
from toolhub.model import CoalesceStatistics

pytestmark = pytest.mark.anyio

STATEFUL = a_spec()
STATELESS = a_spec(share="hub")


async def test_equal_calls_of_all_tasks_are_made_once():
    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        work = Work()
        callers = [Running(tasks, ATask(coalescer, work).call) for _ in range(50)]
        await anyio.wait_all_tasks_blocked()
        assert coalescer.statistics() == CoalesceStatistics(executions=1, coalesced=49, in_flight=1)
        work.go.set()
        assert [(await caller.wait()).text for caller in callers] == ["done"] * 50
        assert work.runs == 1


async def test_a_call_that_comes_after_the_answer_is_made_again():
    async with open_coalescer() as coalescer:
        work = Work()
        work.go.set()
        task = ATask(coalescer, work)
        await task.call()
        await task.call()
        assert work.runs == 2


@pytest.mark.parametrize(
    "different",
    [{"tool": "list"}, {"arguments": {"path": "b"}}, {"arguments": {"path": "a", "more": 1}}],
)
async def test_calls_that_differ_are_made_each(different):
    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        work = Work()
        task = ATask(coalescer, work)
        for call in ({"arguments": {"path": "a"}}, different):
            tasks.start_soon(lambda call=call: task.call(**call))
        await anyio.wait_all_tasks_blocked()
        assert work.running == 2
        work.go.set()


@pytest.mark.parametrize(
    ("spec", "policy", "runs"),
    [
        (STATELESS, READ, 1),
        (STATELESS, SET, 1),
        (STATELESS, ACT, 4),
        (STATEFUL, READ, 2),
        (STATEFUL, ACT, 4),
        (a_spec(share="hub", coalesce="off"), READ, 4),
        (a_spec(share="hub", coalesce="task"), READ, 2),
        (a_spec(share="hub", coalesce="task", cache={"scope": "hub"}), READ, 1),
    ],
)
async def test_sharing_goes_as_far_as_the_tool_and_the_server_allow(spec, policy, runs):
    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        work = Work()
        for task in [ATask(coalescer, work, AServer(spec)) for _ in range(2)]:
            tasks.start_soon(lambda task=task: task.call(policy=policy))
            tasks.start_soon(lambda task=task: task.call(policy=policy))
        await anyio.wait_all_tasks_blocked()
        assert work.running == runs
        work.go.set()


async def test_arguments_that_are_not_json_are_shared_with_nobody():
    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        work = Work()
        task = ATask(coalescer, work)
        for _ in range(2):
            tasks.start_soon(task.call, "read", {"path": b"a"})
        await anyio.wait_all_tasks_blocked()
        assert work.running == 2
        work.go.set()


# --- coming and going -----------------------------------------------------------------------------------------------


async def test_when_the_leader_is_cancelled_the_next_caller_makes_the_call():
    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        work = Work()
        first = Running(tasks, ATask(coalescer, work).call)
        await anyio.wait_all_tasks_blocked()
        others = [Running(tasks, ATask(coalescer, work).call) for _ in range(3)]
        await anyio.wait_all_tasks_blocked()
        first.cancel()
        assert await first.wait() is None
        work.go.set()
        assert [(await other.wait()).text for other in others] == ["done"] * 3
        assert (work.runs, work.cancelled, work.most) == (2, 1, 1)


async def test_a_caller_that_waits_can_leave_without_a_trace():
    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        work = Work()
        leader = Running(tasks, ATask(coalescer, work).call)
        await anyio.wait_all_tasks_blocked()
        waiting = Running(tasks, ATask(coalescer, work).call)
        await anyio.wait_all_tasks_blocked()
        waiting.cancel()
        assert await waiting.wait() is None
        work.go.set()
        assert (await leader.wait()).text == "done"
        assert (work.runs, work.cancelled) == (1, 0)


async def test_when_every_caller_leaves_the_work_ends_with_them():
    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        work = Work()
        callers = [Running(tasks, ATask(coalescer, work).call) for _ in range(3)]
        for caller in callers:
            await anyio.wait_all_tasks_blocked()
            caller.cancel()
        await anyio.wait_all_tasks_blocked()
        assert (work.running, work.cancelled) == (0, work.runs)


async def test_work_that_is_being_cancelled_has_ended_before_an_equal_call_is_made():
    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        work = Work()
        work.may_end = anyio.Event()
        task = ATask(coalescer, work)
        impatient = Running(tasks, task.call)
        await anyio.wait_all_tasks_blocked()
        impatient.cancel()
        later = [Running(tasks, task.call) for _ in range(2)]
        await anyio.wait_all_tasks_blocked()
        assert (work.runs, work.running) == (1, 1)
        work.may_end.set()
        work.go.set()
        assert [(await caller.wait()).text for caller in later] == ["done", "done"]
        assert (work.runs, work.most) == (2, 1)


@pytest.mark.parametrize("anyio_backend", [virtual_time()])
async def test_every_caller_has_a_deadline_of_its_own():
    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        work, began, outcomes = Work(), anyio.current_time(), {}
        callers = {t: Running(tasks, lambda t=t: ATask(coalescer, work).call(timeout=t)) for t in (2, 3, 1)}
        for timeout, caller in sorted(callers.items()):
            outcomes[timeout] = await caller.wait()
            assert anyio.current_time() == began + timeout
        await anyio.wait_all_tasks_blocked()
        assert (work.running, work.most) == (0, 1)
        assert all(type(error) is CallTimeout and error.timeout == t for t, error in outcomes.items())


@pytest.mark.parametrize("anyio_backend", [virtual_time()])
@pytest.mark.parametrize(("has_begun", "sent"), [(True, "maybe"), (False, "no")])
async def test_a_timeout_tells_a_waiting_caller_whether_the_one_request_was_sent(has_begun, sent):
    async def waits_its_turn(call) -> None:
        if has_begun:
            call.delivery.mark_sent(anyio.current_time())
        await anyio.sleep_forever()

    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        task = ATask(coalescer, waits_its_turn)
        callers = [Running(tasks, lambda t=t: task.call(timeout=t)) for t in (2, 1)]
        errors = [await caller.wait() for caller in callers]
        assert [(type(error), error.sent) for error in errors] == [(CallTimeout, sent)] * 2


# --- what callers get -----------------------------------------------------------------------------------------------


async def test_what_one_caller_does_with_its_result_changes_no_other_s():
    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        work = Work()
        callers = [Running(tasks, ATask(coalescer, work).call) for _ in range(4)]
        await anyio.wait_all_tasks_blocked()
        work.go.set()
        results = [await caller.wait() for caller in callers]
        for number, result in enumerate(results):
            assert result == an_answer()
            result.raw["content"][0]["text"] = f"changed by {number}"
            result.raw["content"].append({})
            result.raw["isError"] = True


async def test_a_caller_that_was_alone_gets_the_result_itself():
    async with open_coalescer() as coalescer:
        work = Work()
        work.answer = an_answer()
        work.go.set()
        assert await ATask(coalescer, work).call() is work.answer


@pytest.mark.parametrize("error", [ValueError("odd"), SessionLost("it died", state_lost=True), Overloaded("full")])
async def test_an_error_is_the_leader_s_alone_and_the_next_caller_makes_the_call(error):
    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        work = Work(error)
        callers = [Running(tasks, ATask(coalescer, work).call) for _ in range(4)]
        await anyio.wait_all_tasks_blocked()
        work.go.set()
        outcomes = [await caller.wait() for caller in callers]
        assert outcomes.count(error) == 1
        assert [outcome.text for outcome in outcomes if outcome is not error] == ["done"] * 3
        assert (work.runs, work.most) == (2, 1)


async def test_a_failure_that_lasts_is_told_to_every_caller():
    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        work = Work(*(Overloaded(str(number)) for number in range(3)))
        callers = [Running(tasks, ATask(coalescer, work).call) for _ in range(3)]
        await anyio.wait_all_tasks_blocked()
        work.go.set()
        assert sorted([str(await caller.wait()) for caller in callers]) == ["0", "1", "2"]


async def test_progress_reaches_the_caller_that_leads():
    heard: list[float] = []

    async def on_progress(progress, total, message) -> None:
        heard.append(progress)

    async def work(call):
        await call.on_progress(1.0, None, None)
        return an_answer()

    async with open_coalescer() as coalescer:
        await ATask(coalescer, work).call(on_progress=on_progress)
    assert heard == [1.0]


async def test_a_lost_call_is_repeated_once_for_all_of_its_callers():
    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        work, task = Work(SessionLost("it died", sent="maybe")), None
        task = ATask(coalescer, work)
        calls = [task.a_call() for _ in range(5)]
        callers = [Running(tasks, task.handle, call) for call in calls]
        await anyio.wait_all_tasks_blocked()
        work.go.set()
        assert {(await caller.wait()).text for caller in callers} == {"done"}
        assert (work.runs, task.retries) == (2, 1)
        assert sum(call.delivery.attempts for call in calls) == 2


# --- state ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "runs"), [(STATEFUL, 2), (STATELESS, 1)])
@pytest.mark.parametrize("policy", [ACT, SET])
async def test_a_read_after_a_write_does_not_get_what_was_read_before_it(spec, runs, policy):
    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        reads, writes = Work(), Work()
        writes.go.set()
        server = AServer(spec)
        reader, writer = ATask(coalescer, reads, server), ATask(coalescer, writes, server)
        writer.id = reader.id
        tasks.start_soon(reader.call)
        await anyio.wait_all_tasks_blocked()
        await writer.call("write", policy=policy)
        tasks.start_soon(reader.call)
        await anyio.wait_all_tasks_blocked()
        assert reads.running == runs
        reads.go.set()


# --- all of it at random --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
async def test_whatever_comes_and_goes_nobody_is_lost_and_nothing_is_left_running(seed):
    rng = random.Random(seed)
    running: dict[str, int] = {}
    waiting: dict[str, int] = {}
    crowd: list[Running] = []

    async def work(call):
        key = call.tool
        running[key] = running.get(key, 0) + 1
        assert running[key] == 1, "two executions of equal calls at a time"
        try:
            for _ in range(rng.randrange(12)):
                await anyio.lowlevel.checkpoint()
            if rng.random() < 0.2:
                raise SessionLost("it died", sent=rng.choice(["no", "maybe"]))
            return an_answer(key)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            running[key] -= 1

    async def caller(task: ATask, tool: str):
        waiting[tool] = waiting.get(tool, 0) + 1
        try:
            return (await task.call(tool)).text
        finally:
            waiting[tool] -= 1

    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        agents = [ATask(coalescer, work, AServer(STATELESS)) for _ in range(4)]
        for _ in range(150):
            tool = rng.choice("abc")
            crowd.append(Running(tasks, caller, rng.choice(agents), tool))
            crowd[-1].tool = tool  # type: ignore[attr-defined]  # what its answer has to be
            for _ in range(rng.randrange(3)):
                await anyio.lowlevel.checkpoint()
            for _ in range(rng.choice((0, 0, 1, 3))):
                rng.choice(crowd).cancel()
        for one in crowd:
            outcome = await one.wait()
            assert outcome in (None, one.tool) or isinstance(outcome, SessionLost), outcome  # type: ignore[attr-defined]
    assert set(running.values()) == set(waiting.values()) == {0}


@pytest.mark.parametrize("seed", range(15))
async def test_when_all_callers_leave_at_random_the_work_always_ends_with_them(seed):
    rng = random.Random(seed)
    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        work = Work()  # never lets anybody go
        crowd = [Running(tasks, ATask(coalescer, work).call, rng.choice("ab")) for _ in range(40)]
        rng.shuffle(crowd)
        for one in crowd:
            one.cancel()
            for _ in range(rng.randrange(4)):
                await anyio.lowlevel.checkpoint()
        for one in crowd:
            assert await one.wait() is None
        await anyio.wait_all_tasks_blocked()
        assert (work.running, work.cancelled) == (0, work.runs)
