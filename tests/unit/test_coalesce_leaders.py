"""What is due to who led a flight is not passed on: other tasks' calls start over, each at most as often as is fair."""

from __future__ import annotations

import anyio
import pytest
from shared_calls import AServer, ATask, Work, open_flights
from stage import Running, a_spec

from toolhub.errors import CircuitOpen, HubClosed, Overloaded, SessionLost, StartError
from toolhub.layers.coalesce import Flights

pytestmark = pytest.mark.anyio

OWN_SESSIONS = a_spec(share="task", stateful=False)


def own_server() -> AServer:
    return AServer(OWN_SESSIONS)


async def test_when_the_leader_s_task_is_closed_the_others_start_over_in_their_own():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        closing, staying = Work(), Work()
        leader, other = ATask(flights, closing, own_server()), ATask(flights, staying, own_server())
        own = [Running(tasks, leader.call) for _ in range(2)]
        await anyio.wait_all_tasks_blocked()
        foreign = [Running(tasks, other.call) for _ in range(3)]
        await anyio.wait_all_tasks_blocked()
        leader.close()
        assert [type(await caller.wait()) for caller in own] == [HubClosed] * 2
        await anyio.wait_all_tasks_blocked()
        assert (closing.running, staying.running) == (0, 1)
        staying.go.set()
        assert [(await caller.wait()).text for caller in foreign] == ["done"] * 3
        assert (staying.runs, flights.statistics().restarts) == (1, 3)


@pytest.mark.parametrize("error", [SessionLost("it was ended", sent="maybe"), HubClosed("shut down"), StartError("no")])
async def test_an_error_from_a_task_that_closes_fails_no_other_task(error):
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        closing, staying = Work(error, error, error), Work()
        leader, other = ATask(flights, closing), ATask(flights, staying)
        own = Running(tasks, leader.call)
        await anyio.wait_all_tasks_blocked()
        call = other.a_call()
        foreign = Running(tasks, other.handle, call)
        await anyio.wait_all_tasks_blocked()
        leader.is_closed = True
        closing.go.set()
        assert type(await own.wait()) is type(error)
        await anyio.wait_all_tasks_blocked()
        assert not foreign.is_done
        staying.go.set()
        assert (await foreign.wait()).text == "done"
        assert (staying.runs, call.delivery.sent) == (1, "maybe")


async def test_any_number_of_closing_tasks_fails_no_call_of_one_that_stays():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        works = [Work() for _ in range(5)]
        agents = [ATask(flights, work, own_server()) for work in works]
        callers = []
        for agent in agents:
            callers.append(Running(tasks, agent.call))
            await anyio.wait_all_tasks_blocked()
        for agent in agents[:-1]:
            agent.close()
            await anyio.wait_all_tasks_blocked()
            assert sum(work.running for work in works) == 1
        works[-1].go.set()
        assert (await callers[-1].wait()).text == "done"
        assert [type(await caller.wait()) for caller in callers[:-1]] == [HubClosed] * 4


async def test_a_server_that_all_tasks_share_goes_on_when_the_leader_s_task_is_closed():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work = Work()
        leader, other = ATask(flights, work), ATask(flights, work)
        Running(tasks, leader.call)
        await anyio.wait_all_tasks_blocked()
        foreign = Running(tasks, other.call)
        await anyio.wait_all_tasks_blocked()
        leader.close()
        work.go.set()
        assert (await foreign.wait()).text == "done"
        assert work.runs == 1


async def test_a_caller_whose_own_task_is_closed_does_not_start_over():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        works = Work(), Work()
        leader, other = (ATask(flights, work, own_server()) for work in works)
        Running(tasks, leader.call)
        await anyio.wait_all_tasks_blocked()
        foreign = Running(tasks, other.call)
        await anyio.wait_all_tasks_blocked()
        other.close()
        leader.close()
        assert type(await foreign.wait()) is HubClosed
        assert works[1].runs == 0


async def test_a_task_that_is_closed_does_not_wait_for_a_flight_of_another():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        works = Work(), Work()
        leader, other = (ATask(flights, work, own_server()) for work in works)
        own = Running(tasks, leader.call)
        await anyio.wait_all_tasks_blocked()
        foreign = Running(tasks, other.call)
        await anyio.wait_all_tasks_blocked()
        other.close()
        assert type(await foreign.wait()) is HubClosed
        assert works[0].running == 1
        works[0].go.set()
        assert (await own.wait()).text == "done"


async def test_no_room_for_the_leader_s_task_is_no_refusal_of_another():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        crowded, free = Work(Overloaded("your task has most in it")), Work()
        leader, other = ATask(flights, crowded), ATask(flights, free)
        refused = [Running(tasks, leader.call) for _ in range(2)]
        await anyio.wait_all_tasks_blocked()
        foreign = Running(tasks, other.call)
        await anyio.wait_all_tasks_blocked()
        crowded.go.set()
        free.go.set()
        assert [type(await caller.wait()) for caller in refused] == [Overloaded] * 2
        assert (await foreign.wait()).text == "done"


async def test_a_refusal_for_the_leader_s_early_deadline_is_none_of_a_call_with_enough_time():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work = Work(Overloaded("its turn would come after its deadline", retry_after=600.0))
        task = ATask(flights, work)
        hurried = Running(tasks, lambda: task.call(timeout=300))
        await anyio.wait_all_tasks_blocked()
        patient = Running(tasks, lambda: task.call(timeout=900))
        less_hurried = Running(tasks, lambda: task.call(timeout=500))
        await anyio.wait_all_tasks_blocked()
        work.go.set()
        assert [type(await caller.wait()) for caller in (hurried, less_hurried)] == [Overloaded] * 2
        assert (await patient.wait()).text == "done"


@pytest.mark.parametrize("retry_after", [None, 1.0])
async def test_a_full_queue_refuses_all_equal_calls_of_a_task_at_once(retry_after):
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work = Work(Overloaded("its queue is full", retry_after=retry_after))
        task = ATask(flights, work)
        callers = [Running(tasks, task.call) for _ in range(5)]
        await anyio.wait_all_tasks_blocked()
        work.go.set()
        errors = [await caller.wait() for caller in callers]
        assert [(type(error), error.retry_after) for error in errors] == [(Overloaded, retry_after)] * 5
        assert work.runs == 1


async def test_a_broken_server_of_the_leader_s_own_is_tried_once_more_in_another_task_and_not_in_all():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        works = [Work(CircuitOpen("it died too often")) for _ in range(6)]
        callers = []
        for work in works:
            callers.append(Running(tasks, ATask(flights, work, own_server()).call))
            await anyio.wait_all_tasks_blocked()
        for work in works:
            work.go.set()
        assert [type(await caller.wait()) for caller in callers] == [CircuitOpen] * 6
        assert sum(work.runs for work in works) == 2


async def test_a_broken_server_that_all_share_is_not_tried_again():
    async with open_flights() as flights, anyio.create_task_group() as tasks:
        work = Work(CircuitOpen("it died too often"))
        callers = [Running(tasks, ATask(flights, work).call) for _ in range(3)]
        await anyio.wait_all_tasks_blocked()
        work.go.set()
        assert [type(await caller.wait()) for caller in callers] == [CircuitOpen] * 3
        assert work.runs == 1


async def test_when_the_hub_ends_every_caller_is_told():
    async with anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as owners:
            flights, work = Flights(owners), Work()
            callers = [Running(tasks, ATask(flights, work).call) for _ in range(3)]
            await anyio.wait_all_tasks_blocked()
            owners.cancel_scope.cancel()
        assert [type(await caller.wait()) for caller in callers] == [HubClosed] * 3
        assert flights.by_key == {}
        with pytest.raises(HubClosed):
            await ATask(flights, work).call()
        assert flights.by_key == {}
