"""Owners and limits, over a backend in memory."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest
from running import Running
from toolhub_sandbox import Sandboxes, SandboxLimit, SandboxNotFound, SandboxUnavailable
from toolhub_sandbox import sandboxes as module

from tests.toolhub_sandbox.local.sandbox_stage import UNAVAILABLE, MemoryBackend, patience, settings

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


class CountedBackend(MemoryBackend):
    opened = 0


@pytest.fixture
def backend(monkeypatch):
    backend = CountedBackend()

    @asynccontextmanager
    async def open_backend(_):
        backend.opened += 1
        try:
            yield backend
        finally:
            for sandbox in backend.made:
                sandbox.is_alive = False

    monkeypatch.setattr(module, "_open_backend", open_backend)
    return backend


async def settled():
    with patience():
        await anyio.wait_all_tasks_blocked()


async def test_the_backend_is_opened_with_the_first_sandbox_and_once(backend):
    async with Sandboxes(settings()) as sandboxes:
        scope = sandboxes.for_owner("t1")
        await settled()
        assert (backend.opened, sandboxes.memory_bytes) == (0, None)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(scope.create)
        assert (backend.opened, sandboxes.live, sandboxes.created) == (1, 3, 3)


async def test_an_owner_has_its_own_and_no_others(backend):
    async with Sandboxes(settings()) as sandboxes:
        one, two = sandboxes.for_owner("t1"), sandboxes.for_owner("t2")
        mine = await one.create()
        assert one.get(mine.id) is mine
        assert dict(one.sandboxes) == {mine.id: mine}
        with pytest.raises(SandboxNotFound, match=f"'t2' has no sandbox '{mine.id}'"):
            two.get(mine.id)


async def test_one_that_has_ended_is_not_found(backend):
    async with Sandboxes(settings()) as sandboxes:
        scope = sandboxes.for_owner("t1")
        gone = await scope.create()
        await gone.kill()
        with pytest.raises(SandboxNotFound, match="it has ended or never was there"):
            scope.get(gone.id)
        assert (dict(scope.sandboxes), scope.count) == ({}, 0)


async def test_max_per_task_is_named_and_free_again_after_a_kill(backend):
    async with Sandboxes(settings(max_per_task=2)) as sandboxes:
        scope = sandboxes.for_owner("t1")
        first, _ = await scope.create(), await scope.create()
        with pytest.raises(SandboxLimit, match=r"'t1' has 2 sandboxes \(sandbox\.max_per_task\)") as caught:
            await scope.create()
        assert caught.value.limit == "max_per_task"
        await sandboxes.for_owner("t2").create()
        await first.kill()
        assert (await scope.create()).is_alive


async def test_sandboxes_that_are_being_made_count(backend):
    backend.gate = anyio.Event()
    async with Sandboxes(settings(max_per_task=1)) as sandboxes, anyio.create_task_group() as tasks:
        scope = sandboxes.for_owner("t1")
        first = Running(tasks, scope.create)
        await settled()
        with pytest.raises(SandboxLimit, match="max_per_task"):
            await scope.create()
        first.cancel()
        await first.wait()
        backend.gate.set()
        assert (await scope.create()).is_alive


async def test_max_sandboxes_is_named_and_free_again_after_a_kill(backend):
    async with Sandboxes(settings(max_sandboxes=2)) as sandboxes:
        one, two = sandboxes.for_owner("t1"), sandboxes.for_owner("t2")
        first = await one.create()
        await two.create()
        with pytest.raises(SandboxLimit, match=r"the hub has 2 sandboxes \(sandbox\.max_sandboxes\)") as caught:
            await two.create()
        assert caught.value.limit == "max_sandboxes"
        await first.kill()
        assert (await two.create()).is_alive


async def test_the_memory_budget_is_named_and_free_again(backend):
    async with Sandboxes(settings(memory_budget_bytes=1000)) as sandboxes:
        scope = sandboxes.for_owner("t1")
        await scope.create()
        backend.memory_bytes = 1000
        with pytest.raises(SandboxLimit, match=r"use 1000 of 1000 bytes \(sandbox\.memory_budget_bytes\)") as caught:
            await scope.create()
        assert caught.value.limit == "memory_budget_bytes"
        backend.memory_bytes = 999
        await scope.create()


async def test_a_pool_is_not_filled_beyond_the_memory_budget(backend):
    async with Sandboxes(settings(memory_budget_bytes=1000, profiles={"bare": {"pool": 3}})) as sandboxes:
        backend.memory_bytes = 1000
        await sandboxes.warm()
        await settled()
        assert sandboxes.statistics().ready == 0


async def test_a_create_that_fails_leaves_its_slot_free(backend):
    async with Sandboxes(settings(max_per_task=1)) as sandboxes:
        scope = sandboxes.for_owner("t1")
        backend.fails = UNAVAILABLE
        for _ in range(3):
            with pytest.raises(SandboxUnavailable, match="no room"):
                await scope.create()
        backend.fails = None
        assert (await scope.create()).is_alive


@pytest.mark.parametrize("ask", ["create", "warm"])
async def test_a_profile_that_is_not_there_is_named_with_those_that_are(backend, ask):
    async with Sandboxes(settings()) as sandboxes:
        with pytest.raises(
            SandboxUnavailable, match=r"no sandbox profile 'x'; sandbox\.profiles has bare, cramped, data"
        ):
            await (sandboxes.warm("x") if ask == "warm" else sandboxes.for_owner("t").create("x"))
        assert backend.opened == 0


async def test_the_default_profile_is_used_where_none_is_named(backend):
    async with Sandboxes(settings(default_profile="data")) as sandboxes:
        scope = sandboxes.for_owner("t1")
        assert [(await scope.create()).profile, (await scope.create("bare")).profile] == ["data", "bare"]


async def test_warming_fills_a_pool_that_the_next_takes_from(backend):
    async with Sandboxes(settings(profiles={"bare": {"pool": 2}})) as sandboxes:
        await sandboxes.warm()
        await settled()
        assert (sandboxes.statistics().ready, sandboxes.live) == (2, 0), "what nobody has does not count"
        await sandboxes.for_owner("t1").create()
        with patience():
            while sandboxes.statistics().ready < 2:  # a pool may take its time while others are ready
                await anyio.sleep(0.001)
        counts = sandboxes.statistics()
        assert (counts.live, counts.ready, counts.created, counts.pool_hits, counts.pool_misses) == (1, 2, 1, 1, 0)
        assert "live=1" in repr(sandboxes)


async def test_closing_an_owner_kills_all_of_its_sandboxes_and_no_others(backend):
    async with Sandboxes(settings()) as sandboxes:
        one, two = sandboxes.for_owner("t1"), sandboxes.for_owner("t2")
        for _ in range(3):
            await one.create()
        theirs = await two.create()
        await one.aclose()
        await one.aclose()
        assert (backend.alive, sandboxes.live) == ([theirs], 1)


async def test_a_closed_owner_gets_no_more(backend):
    async with Sandboxes(settings()) as sandboxes:
        scope = sandboxes.for_owner("t1")
        await scope.aclose()
        with pytest.raises(SandboxUnavailable, match="'t1' is closed; it gets no more sandboxes"):
            await scope.create()
        assert backend.attempts == 0


async def test_closing_an_owner_while_its_sandbox_is_made_kills_that_one(backend):
    backend.gate = anyio.Event()
    async with Sandboxes(settings()) as sandboxes, anyio.create_task_group() as tasks:
        scope = sandboxes.for_owner("t1")
        coming = Running(tasks, scope.create)
        await settled()
        await scope.aclose()
        backend.gate.set()
        outcome = await coming.wait()
        assert isinstance(outcome, SandboxUnavailable)
        assert "'t1' was closed while its sandbox was being made" in str(outcome)
        assert backend.alive == []


async def test_leaving_ends_all_of_them(backend):
    async with Sandboxes(settings(profiles={"bare": {"pool": 2}})) as sandboxes:
        await sandboxes.for_owner("t1").create()
        await settled()
        assert len(backend.alive) == 3
    assert backend.alive == []


async def test_a_failure_of_the_caller_reaches_it_as_it_was_raised(backend):
    with pytest.raises(ZeroDivisionError):
        async with Sandboxes(settings()) as sandboxes:
            await sandboxes.for_owner("t1").create()
            raise ZeroDivisionError
    assert backend.alive == []


async def test_after_the_end_there_are_no_sandboxes_and_the_reason_is_told(backend):
    async with Sandboxes(settings()) as sandboxes:
        early = sandboxes.for_owner("t1")
    for scope in (early, sandboxes.for_owner("t2")):
        with pytest.raises(SandboxUnavailable, match="closed"):
            await scope.create()
    assert backend.opened == 0


async def test_leaving_while_one_is_made_tells_its_waiter(backend):
    backend.gate = anyio.Event()
    async with anyio.create_task_group() as tasks:
        async with Sandboxes(settings()) as sandboxes:
            coming = Running(tasks, sandboxes.for_owner("t1").create)
            await settled()
        backend.gate.set()
        assert isinstance(await coming.wait(), SandboxUnavailable)
        assert len(backend.made) == 1
        assert backend.alive == []


async def test_an_accident_of_a_refill_costs_nobody_else_anything(backend, caplog):
    async with Sandboxes(settings(profiles={"bare": {"pool": 1}})) as sandboxes:
        scope = sandboxes.for_owner("t1")
        mine = await scope.create()
        await settled()
        backend.fails = OSError(24, "Too many open files")
        await scope.create()
        await settled()
        assert mine.is_alive
        assert "Too many open files" in caplog.text
