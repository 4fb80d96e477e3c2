"""The rules of a warm pool, over a backend in memory."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager, nullcontext

import anyio
import pytest
from running import Running
from toolhub_sandbox import SandboxUnavailable
from toolhub_sandbox.sandboxes import WarmPool

from tests.toolhub_sandbox.local.sandbox_stage import UNAVAILABLE, MemoryBackend, patience
from toolhub.config import SandboxProfile

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def backend():
    return MemoryBackend()


@asynccontextmanager
async def refilled(backend, size=2, *, start_limiter=nullcontext, may_grow=lambda: True):
    """A pool that somebody refills."""
    profile = SandboxProfile(pool=size)
    pool = WarmPool("bare", profile, backend=backend, start_limiter=start_limiter, may_grow=may_grow, settle_s=0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pool.refill)
        yield pool
        tasks.cancel_scope.cancel()


async def settled():
    with patience():
        await anyio.wait_all_tasks_blocked()


async def test_nothing_is_made_before_the_first_is_asked_for(backend):
    async with refilled(backend) as pool:
        await settled()
        assert (backend.attempts, pool.ready) == (0, 0)


async def test_the_first_taken_fills_the_pool(backend):
    async with refilled(backend) as pool:
        await pool.take()
        await settled()
        assert (pool.ready, pool.hits, pool.misses, len(backend.made)) == (2, 0, 1, 3)


async def test_a_ready_one_is_given_at_once_and_replaced(backend):
    async with refilled(backend) as pool:
        await pool.take()
        await settled()
        backend.gate = anyio.Event()
        taken = await pool.take()
        assert taken is backend.made[1]
        assert (pool.ready, pool.hits) == (1, 1)
        backend.gate.set()
        await settled()
        assert pool.ready == 2


async def test_those_who_wait_are_served_before_the_pool(backend):
    backend.gate = anyio.Event()
    async with refilled(backend) as pool, anyio.create_task_group() as tasks:
        waiters = [Running(tasks, pool.take) for _ in range(3)]
        await settled()
        assert (backend.being_made, pool.ready) == (3, 0), "nothing is made for the pool while somebody waits"
        backend.gate.set()
        assert len({(await waiter.wait()).id for waiter in waiters}) == 3
        await settled()
        assert pool.ready == 2


async def test_dead_ones_are_skipped_and_replaced(backend):
    async with refilled(backend) as pool:
        await pool.take()
        await settled()
        for sandbox in backend.made[1:]:
            sandbox.is_alive = False
        assert pool.ready == 0
        taken = await pool.take()
        assert taken.is_alive
        assert (pool.hits, pool.misses) == (0, 2)
        await settled()
        assert pool.ready == 2


async def test_a_refill_that_fails_is_logged_once_and_tried_again_for_the_next(backend, caplog):
    caplog.set_level(logging.WARNING, "toolhub_sandbox")
    async with refilled(backend) as pool:
        await pool.take()
        backend.fails = UNAVAILABLE
        await settled()
        assert [record.getMessage() for record in caplog.records] == [
            "the pool of profile bare cannot be refilled: no room at the inn"
        ]
        assert backend.attempts == 2
        with pytest.raises(SandboxUnavailable, match="no room at the inn"):
            await pool.take()
        backend.fails = None
        await pool.take()
        await settled()
        assert pool.ready == 2


async def test_the_start_limiter_bounds_how_many_are_made_at_once(backend):
    backend.gate = anyio.Event()
    limiter = anyio.Semaphore(2)
    async with refilled(backend, start_limiter=lambda: limiter) as pool, anyio.create_task_group() as tasks:
        waiters = [Running(tasks, pool.take) for _ in range(5)]
        await settled()
        assert backend.being_made == 2
        backend.gate.set()
        for waiter in waiters:
            await waiter.wait()
        await settled()
        assert (backend.most_at_once, pool.ready) == (2, 2)


async def test_a_waiter_that_is_cancelled_loses_nothing(backend):
    backend.gate = anyio.Event()
    async with refilled(backend) as pool, anyio.create_task_group() as tasks:
        waiter = Running(tasks, pool.take)
        await settled()
        waiter.cancel()
        assert await waiter.wait() is None
        assert backend.made == []
        backend.gate.set()
        await settled()
        assert pool.ready == 2, "the pool is filled although the only waiter left"


async def test_one_that_is_cancelled_leaves_the_others_waiting(backend):
    backend.gate = anyio.Event()
    async with refilled(backend, 1) as pool, anyio.create_task_group() as tasks:
        first, second = Running(tasks, pool.take), Running(tasks, pool.take)
        await settled()
        first.cancel()
        await first.wait()
        await settled()
        assert backend.being_made == 1, "the pool waits until the second has been served"
        backend.gate.set()
        assert (await second.wait()).is_alive


async def test_the_pool_does_not_grow_when_it_may_not(backend):
    may = False
    async with refilled(backend, may_grow=lambda: may) as pool:
        await pool.take()
        await settled()
        assert pool.ready == 0
        may = True
        pool.grow()
        await settled()
        assert pool.ready == 2


async def test_a_closed_pool_makes_no_more(backend):
    async with refilled(backend) as pool:
        await pool.take()
        pool.close()
        await settled()
        assert pool.ready == 0
        assert repr(pool) == "<WarmPool bare ready=0 hits=0 misses=1>"
