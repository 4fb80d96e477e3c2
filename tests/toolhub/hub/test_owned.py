"""`hold()`: the owner task enters and leaves, and hears of death."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest
from in_memory_hub import WAIT_TIMEOUT_S
from running import Running

from toolhub.owned import hold

pytestmark = pytest.mark.anyio


class Resource:
    """A resource with a cancel scope inside, which only the task that entered it may leave."""

    def __init__(self, *, fails=None, dies_of=None):
        self.tasks: list[int] = []
        self.may_enter = anyio.Event()
        self.may_enter.set()
        self.dead = anyio.Event()
        self.is_open = False
        self.fails, self.dies_of = fails, dies_of

    @asynccontextmanager
    async def open(self):
        self.tasks.append(anyio.get_current_task().id)
        await self.may_enter.wait()
        if self.fails:
            raise self.fails
        async with anyio.create_task_group() as inside:
            if self.dies_of:
                inside.start_soon(self._die)
            self.is_open = True
            try:
                yield self
            finally:
                self.is_open = False
                self.tasks.append(anyio.get_current_task().id)
                inside.cancel_scope.cancel()

    async def _die(self):
        await self.dead.wait()
        raise self.dies_of

    async def wait_dead(self):
        await self.dead.wait()


async def test_one_task_of_its_own_enters_and_leaves():
    resource = Resource()
    async with anyio.create_task_group() as owners:
        held = await hold(owners, resource.open())
        assert resource.is_open
        await held.aclose()
    entered, left = resource.tasks
    assert entered == left != anyio.get_current_task().id


async def test_another_task_than_the_one_that_opened_it_may_close_it():
    resource = Resource()
    async with anyio.create_task_group() as owners, anyio.create_task_group() as others:
        held = await hold(owners, resource.open())
        await Running(others, held.aclose).wait()
        assert held.is_closed
        assert not resource.is_open
        assert held.error is None


async def test_closing_waits_until_the_context_is_left_and_may_be_repeated():
    async with anyio.create_task_group() as owners:
        held = await hold(owners, Resource().open())
        held.release()
        assert held.is_released
        assert not held.is_closed
        with anyio.fail_after(WAIT_TIMEOUT_S):
            await held.aclose()
            await held.aclose()
            await held.wait_closed()
        assert held.is_closed


async def test_a_failed_start_reaches_the_caller_as_it_was_raised():
    failure = ValueError("no such server")
    async with anyio.create_task_group() as owners:
        with pytest.raises(ValueError, match="no such server") as caught:
            await hold(owners, Resource(fails=failure).open())
        assert caught.value is failure
        assert not owners.cancel_scope.cancel_called


async def test_a_failed_start_inside_a_task_group_is_unwrapped():
    @asynccontextmanager
    async def nested():
        async with anyio.create_task_group():
            async with anyio.create_task_group():
                raise ValueError("deep inside")
        yield

    async with anyio.create_task_group() as owners:
        with pytest.raises(ValueError, match="deep inside"):
            await hold(owners, nested())


async def test_a_later_death_is_kept_and_costs_nobody_else_anything():
    resource, neighbour = Resource(dies_of=OSError("pipe broke")), Resource()
    async with anyio.create_task_group() as owners:
        held = await hold(owners, resource.open())
        other = await hold(owners, neighbour.open())
        resource.dead.set()
        with anyio.fail_after(WAIT_TIMEOUT_S):
            await held.wait_closed()
        assert repr(held.error) == "OSError('pipe broke')"
        await anyio.wait_all_tasks_blocked()
        assert neighbour.is_open
        await other.aclose()


async def test_the_owner_leaves_by_itself_when_until_returns():
    resource = Resource()
    async with anyio.create_task_group() as owners:
        held = await hold(owners, resource.open(), until=Resource.wait_dead)
        await anyio.wait_all_tasks_blocked()
        assert resource.is_open
        resource.dead.set()
        with anyio.fail_after(WAIT_TIMEOUT_S):
            await held.wait_closed()
        assert not resource.is_open
        assert held.error is None
        assert not held.is_released


async def test_what_until_raises_is_the_cause_of_death():
    async def watch(_):
        raise RuntimeError("cannot watch it")

    async with anyio.create_task_group() as owners:
        held = await hold(owners, Resource().open(), until=watch)
        with anyio.fail_after(WAIT_TIMEOUT_S):
            await held.wait_closed()
        assert str(held.error) == "cannot watch it"


async def test_a_release_ends_it_while_until_still_waits():
    async with anyio.create_task_group() as owners:
        held = await hold(owners, Resource().open(), until=Resource.wait_dead)
        with anyio.fail_after(WAIT_TIMEOUT_S):
            await held.aclose()


async def test_cancelling_while_it_enters_leaves_nothing_behind():
    resource = Resource()
    resource.may_enter = anyio.Event()
    async with anyio.create_task_group() as owners, anyio.create_task_group() as callers:
        caller = Running(callers, hold, owners, resource.open())
        await anyio.wait_all_tasks_blocked()
        caller.cancel()
        assert await caller.wait() is None
        resource.may_enter.set()
        await anyio.wait_all_tasks_blocked()
        assert not resource.is_open
        with anyio.fail_after(WAIT_TIMEOUT_S):
            await (await hold(owners, Resource().open())).aclose()  # the group still takes owners


async def test_the_end_of_the_owners_closes_what_they_hold():
    resource = Resource()
    async with anyio.create_task_group() as owners:
        held = await hold(owners, resource.open())
        owners.cancel_scope.cancel()
    assert held.is_closed
    assert not resource.is_open
