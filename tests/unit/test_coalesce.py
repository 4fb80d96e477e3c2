"""Equal calls in flight are made once, and no caller feels that it was not alone."""

from __future__ import annotations

import random

import anyio
import pytest
from shared_calls import ACT, READ, SET, AServer, ATask, Work, an_answer, open_flights
from stage import Running, a_spec, virtual_time

from toolhub.errors import CallTimeout, SessionLost
from toolhub.layers.coalesce import FlightStatistics

pytestmark = pytest.mark.anyio

STATEFUL = a_spec()
STATELESS = a_spec(share="hub")


async def test_equal_calls_of_all_tasks_are_made_once():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work = Work()
        callers = [Running(tasks, ATask(flights, work).call) for _ in range(50)]
        await anyio.wait_all_tasks_blocked()
        assert flights.statistics() == FlightStatistics(flights=1, coalesced=49, restarts=0, in_flight=1)
        work.go.set()
        assert [(await caller.wait()).text for caller in callers] == ["done"] * 50
        assert work.runs == 1


async def test_a_call_that_comes_after_the_answer_is_made_again():
    async with open_flights() as flights:
        work = Work()
        work.go.set()
        task = ATask(flights, work)
        await task.call()
        await task.call()
        assert work.runs == 2


@pytest.mark.parametrize(
    "different",
    [{"tool": "list"}, {"arguments": {"path": "b"}}, {"arguments": {"path": "a", "more": 1}}],
)
async def test_calls_that_differ_are_made_each(different):
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work = Work()
        task = ATask(flights, work)
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
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work = Work()
        for task in [ATask(flights, work, AServer(spec)) for _ in range(2)]:
            tasks.start_soon(lambda task=task: task.call(policy=policy))
            tasks.start_soon(lambda task=task: task.call(policy=policy))
        await anyio.wait_all_tasks_blocked()
        assert work.running == runs
        work.go.set()


async def test_arguments_that_are_not_json_are_shared_with_nobody():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work = Work()
        task = ATask(flights, work)
        for _ in range(2):
            tasks.start_soon(task.call, "read", {"path": b"a"})
        await anyio.wait_all_tasks_blocked()
        assert work.running == 2
        work.go.set()


# --- coming and going -----------------------------------------------------------------------------------------------


async def test_the_first_caller_can_leave_without_ending_the_others():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work = Work()
        first = Running(tasks, ATask(flights, work).call)
        await anyio.wait_all_tasks_blocked()
        others = [Running(tasks, ATask(flights, work).call) for _ in range(3)]
        await anyio.wait_all_tasks_blocked()
        first.cancel()
        assert await first.wait() is None
        work.go.set()
        assert [(await other.wait()).text for other in others] == ["done"] * 3
        assert (work.runs, work.cancelled) == (1, 0)


async def test_the_last_caller_to_leave_cancels_the_work():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work = Work()
        callers = [Running(tasks, ATask(flights, work).call) for _ in range(3)]
        for number, caller in enumerate(callers):
            await anyio.wait_all_tasks_blocked()
            assert (work.running, work.cancelled) == (1, 0), number
            caller.cancel()
        await anyio.wait_all_tasks_blocked()
        assert (work.running, work.cancelled) == (0, 1)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_caller_that_leaves_before_the_work_began_has_none_done():
    async with open_flights() as flights:
        work = Work()
        call = ATask(flights, work).call()
        call.send(None)  # as far as it comes without the event loop
        assert flights.statistics().in_flight == 1
        call.close()
        await anyio.wait_all_tasks_blocked()
        assert (work.runs, flights.by_key) == (0, {})


async def test_work_that_is_being_cancelled_has_ended_before_an_equal_call_is_made():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work = Work()
        work.may_end = anyio.Event()
        task = ATask(flights, work)
        impatient = Running(tasks, task.call)
        await anyio.wait_all_tasks_blocked()
        impatient.cancel()
        await impatient.wait()
        later = [Running(tasks, task.call) for _ in range(2)]
        await anyio.wait_all_tasks_blocked()
        assert (work.runs, work.running) == (1, 1)
        work.may_end.set()
        work.go.set()
        assert [(await caller.wait()).text for caller in later] == ["done", "done"]
        assert (work.runs, work.most) == (2, 1)


@pytest.mark.parametrize("anyio_backend", [virtual_time()])
async def test_every_caller_has_a_deadline_of_its_own_and_the_last_one_bounds_the_work():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work, began, outcomes = Work(), anyio.current_time(), {}
        callers = {t: Running(tasks, lambda t=t: ATask(flights, work).call(timeout=t)) for t in (2, 3, 1)}
        for timeout, caller in sorted(callers.items()):
            assert (work.running, work.cancelled) == (timeout > 1, 0)
            outcomes[timeout] = await caller.wait()
            assert anyio.current_time() == began + timeout
        await anyio.wait_all_tasks_blocked()
        assert (work.runs, work.cancelled) == (1, 1)
        assert all(type(error) is CallTimeout and error.timeout == t for t, error in outcomes.items())


@pytest.mark.parametrize("anyio_backend", [virtual_time()])
@pytest.mark.parametrize(("has_begun", "sent"), [(True, "maybe"), (False, "no")])
async def test_a_timeout_tells_of_every_caller_whether_the_one_request_was_sent(has_begun, sent):
    async def waits_its_turn(call) -> None:
        call.delivery.sent = "maybe" if has_begun else "no"
        await anyio.sleep_forever()

    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work = Work()
        first = ATask(flights, waits_its_turn)  # type: ignore[arg-type]  # a function will do
        callers = [Running(tasks, lambda t=t: first.call(timeout=t)) for t in (1, 2)]
        errors = [await caller.wait() for caller in callers]
        assert [(type(error), error.sent) for error in errors] == [(CallTimeout, sent)] * 2
        assert work.runs == 0


# --- what callers get -----------------------------------------------------------------------------------------------


async def test_what_one_caller_does_with_its_result_changes_no_other_s():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work = Work()
        callers = [Running(tasks, ATask(flights, work).call) for _ in range(4)]
        await anyio.wait_all_tasks_blocked()
        work.go.set()
        results = [await caller.wait() for caller in callers]
        for number, result in enumerate(results):
            assert result == an_answer()
            result.raw["content"][0]["text"] = f"changed by {number}"
            result.raw["content"].append({})
            result.raw["isError"] = True


async def test_a_caller_that_was_alone_gets_the_result_itself():
    async with open_flights() as flights:
        work = Work()
        work.answer = an_answer()
        work.go.set()
        assert await ATask(flights, work).call() is work.answer


async def test_every_caller_gets_an_error_of_its_own():
    lost = SessionLost("it died", exit_code=-9, sent="maybe", server="memory", tool="read", state_lost=True)
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work, task = Work(lost), None
        task = ATask(flights, work)
        calls = [task.a_call() for _ in range(3)]
        callers = [Running(tasks, task.handle, call) for call in calls]
        await anyio.wait_all_tasks_blocked()
        work.go.set()
        errors = [await caller.wait() for caller in callers]
    assert [error.call_id for error in errors] == [call.id for call in calls]
    assert len({id(error) for error in errors}) == 3
    assert {(str(e), e.exit_code, e.sent, e.state_lost, e.tool) for e in errors} == {
        ("it died", -9, "maybe", True, "read")
    }


@pytest.mark.parametrize(
    "error", [ValueError("odd"), KeyError("k"), PermissionError("no"), ExceptionGroup("g", [OSError()])]
)
async def test_an_error_of_any_kind_reaches_every_caller(error):
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work = Work(error)
        callers = [Running(tasks, ATask(flights, work).call) for _ in range(3)]
        await anyio.wait_all_tasks_blocked()
        work.go.set()
        assert [(type(e), str(e)) for e in [await caller.wait() for caller in callers]] == [
            (type(error), str(error))
        ] * 3


async def test_a_lost_call_is_repeated_once_for_all_of_its_callers():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work, task = Work(SessionLost("it died", sent="maybe")), None
        task = ATask(flights, work)
        calls = [task.a_call() for _ in range(5)]
        callers = [Running(tasks, task.handle, call) for call in calls]
        await anyio.wait_all_tasks_blocked()
        work.go.set()
        assert {(await caller.wait()).text for caller in callers} == {"done"}
        assert (work.runs, task.retries) == (2, 1)
        assert [(call.delivery.attempts, call.delivery.sent) for call in calls] == [(2, "maybe")] * 5


async def test_a_caller_that_leaves_can_change_its_arguments_without_changing_the_call():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work, arguments = Work(), {"path": ["a"]}
        leaver = Running(tasks, ATask(flights, work).call, "read", arguments)
        stayer = Running(tasks, ATask(flights, work).call, "read", {"path": ["a"]})
        await anyio.wait_all_tasks_blocked()
        leaver.cancel()
        await leaver.wait()
        arguments["path"].append("b")
        work.go.set()
        await stayer.wait()
        assert work.calls[0].arguments == {"path": ["a"]}


# --- state ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "runs"), [(STATEFUL, 2), (STATELESS, 1)])
@pytest.mark.parametrize("policy", [ACT, SET])
async def test_a_read_after_a_write_does_not_get_what_was_read_before_it(spec, runs, policy):
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        reads, writes = Work(), Work()
        writes.go.set()
        server = AServer(spec)
        reader, writer = ATask(flights, reads, server), ATask(flights, writes, server)
        reader.party = writer.party
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

    async with open_flights() as flights, anyio.create_task_group() as tasks:
        agents = [ATask(flights, work, AServer(STATELESS)) for _ in range(4)]
        for _ in range(150):
            tool = rng.choice("abc")
            crowd.append(Running(tasks, caller, rng.choice(agents), tool))
            crowd[-1].tool = tool  # type: ignore[attr-defined]  # what its answer has to be
            for _ in range(rng.randrange(3)):
                await anyio.lowlevel.checkpoint()
            for _ in range(rng.choice((0, 0, 1, 3))):
                rng.choice(crowd).cancel()
            if rng.random() < 0.03:
                rng.choice(agents).close()
                agents.append(ATask(flights, work, AServer(STATELESS)))
        for one in crowd:
            outcome = await one.wait()
            assert outcome in (None, one.tool) or isinstance(outcome, SessionLost), outcome  # type: ignore[attr-defined]
    assert set(running.values()) == set(waiting.values()) == {0}
    assert flights.by_key == {}


@pytest.mark.parametrize("seed", range(15))
async def test_when_all_callers_leave_at_random_the_work_always_ends_with_them(seed):
    rng = random.Random(seed)
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work = Work()  # never lets anybody go
        crowd = [Running(tasks, ATask(flights, work).call, rng.choice("ab")) for _ in range(40)]
        rng.shuffle(crowd)
        for one in crowd:
            one.cancel()
            for _ in range(rng.randrange(4)):
                await anyio.lowlevel.checkpoint()
        for one in crowd:
            assert await one.wait() is None
        await anyio.wait_all_tasks_blocked()
        assert (work.running, work.cancelled, flights.by_key) == (0, work.runs, {})
