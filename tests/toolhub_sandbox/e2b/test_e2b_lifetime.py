"""From creation to death: leases, kills, and nothing left behind."""

from __future__ import annotations

import random

import anyio
import pytest
from toolhub_sandbox import SandboxLost, SandboxUnavailable
from toolhub_sandbox.e2b import open_e2b
from toolhub_sandbox.e2b.lifecycle import Lease

from tests.toolhub_sandbox.e2b.standin_stage import patience, profile, settings

pytestmark = pytest.mark.anyio


def test_a_lease_is_renewed_between_40_and_50_percent_of_it():
    lease = Lease(seconds=600, ends_at=1600.0)
    times = {lease.next_renewal(rng=random.Random(seed)) for seed in range(50)}
    assert len(times) == 50
    assert all(1240 <= time <= 1300 for time in times)


async def test_a_sandbox_has_the_ids_and_the_profile_it_was_made_with(sandbox, service):
    with patience():
        info = await sandbox.info()
    assert service.alive == [sandbox.id] == [info.id]
    assert (info.profile, info.backend, info.executions, info.rss_bytes) == ("bare", "e2b", 0, 123_456_789)
    assert 50 < info.lease_s <= 60
    assert repr(sandbox) == f"<E2BSandbox {sandbox.id} 'bare' alive>"


async def test_the_network_of_a_profile_is_asked_for(backend, service):
    with patience():
        await backend.create("none", profile())
        await backend.create("host", profile(network="host"))
        await backend.create("some", profile(network={"allow": ["example.org:8443", "*.example.net"]}))
    none, host, some = service.created
    assert (none["allow_internet_access"], host["allow_internet_access"]) == (False, True)
    assert some["network"] == {"allowOut": ["example.org", "*.example.net"], "denyOut": ["0.0.0.0/0"]}


async def test_a_profile_that_reads_folders_of_the_host_is_refused(backend, service):
    with pytest.raises(SandboxUnavailable, match="/data"):
        await backend.create("own", profile(read_only=["/data"]))
    assert service.created == []


async def test_the_lease_is_renewed_while_the_sandbox_lives(service):
    async with open_e2b(settings(lease_s=3)) as backend:
        with patience():
            sandbox = await backend.create("bare", profile())
            await service.until(lambda: len(service.renewed) >= 3)
            assert (await sandbox.exec_code("1 + 1")).result == "2"
    assert set(service.renewed) == {(sandbox.id, 3)}


async def test_a_renewal_that_failed_is_tried_again(service):
    service.fail("POST /sandboxes/.*/timeout", 500, times=2)
    async with open_e2b(settings(lease_s=5)) as backend:
        with patience():
            sandbox = await backend.create("bare", profile())
            await service.until(lambda: service.renewed)
            assert sandbox.is_alive


async def test_a_sandbox_found_dead_at_its_renewal_is_closed(service):
    async with open_e2b(settings(lease_s=1)) as backend:
        with patience():
            sandbox = await backend.create("bare", profile())
            service.machines[sandbox.id].kill()
            await sandbox.wait_closed()
            assert not sandbox.is_alive
            with pytest.raises(SandboxLost):
                await sandbox.info()


async def test_a_hub_that_crashed_leaves_sandboxes_only_until_their_leases_end(service):
    async with open_e2b(settings(lease_s=1)) as backend:
        with patience():
            sandbox = await backend.create("bare", profile())
            service.fail("POST /sandboxes/.*/timeout", until=anyio.Event())  # no renewal arrives any more
            await sandbox.wait_closed()
    assert service.alive == []


async def test_kill_ends_it_at_the_service_and_is_idempotent(sandbox, service):
    with patience():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.kill)
            tasks.start_soon(sandbox.kill)
        await sandbox.kill()
        await sandbox.wait_closed()
    assert service.killed == [sandbox.id]
    assert service.alive == []
    with pytest.raises(SandboxLost, match="was killed"):
        await sandbox.exec_code("1")


async def test_a_kill_that_is_cancelled_still_arrives(sandbox, service):
    with patience():
        with anyio.CancelScope() as scope:
            scope.cancel()
            await sandbox.kill()
    assert service.alive == []


async def test_a_kill_ends_what_is_running(sandbox, service):
    code, outcomes = "import time\nprint('begun')\ntime.sleep(60)", []

    async def lost(call, text):
        with pytest.raises(SandboxLost, match="was killed"):
            await call(text)
        outcomes.append(text)

    with patience():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lost, sandbox.exec_code, code)
            tasks.start_soon(lost, sandbox.run_command, "sleep 60")
            await service.until(lambda: "begun" in service.printed and service.started)
            await sandbox.kill()
    assert sorted(outcomes) == [code, "sleep 60"]


async def test_leaving_the_backend_kills_every_sandbox(service):
    with patience():
        async with open_e2b(settings()) as backend:
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(backend.create, "bare", profile())
            assert len(service.alive) == 3
    assert sorted(service.killed) == sorted(service.machines)
    assert service.alive == []
    with pytest.raises(SandboxUnavailable, match="closed"):
        await backend.create("bare", profile())


async def test_an_error_leaves_the_backend_as_it_is_and_no_sandbox(service):
    with patience(), pytest.raises(LookupError, match="mine"):
        async with open_e2b(settings()) as backend:
            await backend.create("bare", profile())
            raise LookupError("mine")
    assert service.alive == []


async def test_a_backend_that_is_cancelled_leaves_nothing(service):
    with patience():
        with anyio.CancelScope() as scope:
            async with open_e2b(settings()) as backend:
                await backend.create("bare", profile())
                scope.cancel()
                await anyio.sleep_forever()
    assert service.alive == []


async def test_a_cancelled_creation_leaks_nothing(backend, service):
    service.answer_creations = anyio.Event()
    with patience():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.create, "bare", profile())
            await service.until(lambda: service.machines)
            tasks.cancel_scope.cancel()
        assert len(service.alive) == 1
        service.answer_creations.set()
        await service.until(lambda: service.killed)
        await service.until(lambda: not service.alive)
    assert len(service.created) == 1


async def test_a_creation_whose_answer_never_arrives_is_swept_up_at_the_end(service):
    service.answer_creations = anyio.Event()
    with patience():
        async with open_e2b(settings(request_timeout_s=0.5)) as backend:
            with pytest.raises(SandboxUnavailable, match="no answer within|timed out"):
                await backend.create("bare", profile())
            assert len(service.alive) == 1
    assert service.alive == []
