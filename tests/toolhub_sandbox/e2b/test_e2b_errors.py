"""What the service and the network do wrong, and what callers are told."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import traceback

import anyio
import pytest
from toolhub_sandbox import SandboxError, SandboxLimit, SandboxLost, SandboxUnavailable
from toolhub_sandbox.e2b import open_e2b

from tests.toolhub_sandbox.e2b.standin import KEY
from tests.toolhub_sandbox.e2b.standin_stage import patience, profile, settings

pytestmark = pytest.mark.anyio

WRONG_KEY = "e2b_a-wrong-key"


def shown(error):
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_is_a_limit_and_slows_creations_down(service, status):
    service.fail("POST /v2/sandboxes", status)
    with patience():
        async with open_e2b(settings(creates_per_second=2)) as backend:
            with pytest.raises(SandboxLimit) as refusal:
                await backend.create("bare", profile())
            assert refusal.value.limit == "e2b"
            assert refusal.value.retry_after == pytest.approx(1, abs=0.3)  # one a second, after two
            assert backend.creation_limiter.rate.current == 1
            service.faults.clear()
            before = anyio.current_time()
            await backend.create("bare", profile())
            assert anyio.current_time() - before >= 0.5
            assert 1 < backend.creation_limiter.rate.current < 2
    assert len(service.created) == 1


async def test_a_retry_after_is_waited_for_before_the_next_try(service):
    service.fail("POST /v2/sandboxes", 429, headers={"Retry-After": "1"}, times=1)
    with patience():
        async with open_e2b(settings()) as backend:
            before = anyio.current_time()
            await backend.create("bare", profile())
    assert anyio.current_time() - before >= 1
    assert service.requests.count("POST /v2/sandboxes") == 2
    assert len(service.created) == 1


async def test_creations_keep_to_the_configured_rate(service):
    with patience():
        async with open_e2b(settings(creates_per_second=5)) as backend:
            before = anyio.current_time()
            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(backend.create, "bare", profile())
            assert anyio.current_time() - before >= 3 / 5


async def test_without_a_key_both_ways_to_give_one_are_named(service, monkeypatch):
    monkeypatch.delenv("E2B_API_KEY")
    with pytest.raises(SandboxUnavailable, match=r"E2B_API_KEY.*sandbox\.e2b\.api_key"):
        async with open_e2b(settings()):
            raise AssertionError("opened without a key")


async def test_without_the_sdk_the_extra_is_named(service, monkeypatch):
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(SandboxUnavailable, match=r"pip install 'toolhub-runtime\[e2b\]'"):
        async with open_e2b(settings()):
            raise AssertionError("opened without the SDK")


async def test_an_sdk_that_is_too_old_is_told_with_the_way_out(service, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.55.1")
    with pytest.raises(SandboxUnavailable, match=r"e2b 2\.55\.1 is too old.*e2b>=2\.63"):
        async with open_e2b(settings()):
            raise AssertionError("opened with an old SDK")


async def test_a_key_in_the_config_goes_before_the_variable(service, monkeypatch):
    monkeypatch.setenv("E2B_API_KEY", WRONG_KEY)
    with patience():
        async with open_e2b(settings(api_key=KEY)) as backend:
            assert (await backend.create("bare", profile())).is_alive


async def test_a_refused_key_is_told_but_never_shown(service, caplog):
    caplog.set_level(logging.DEBUG)
    with patience():
        async with open_e2b(settings(api_key=WRONG_KEY)) as backend:
            with pytest.raises(SandboxUnavailable, match="refused the API key.*\\*\\*\\*") as refusal:
                await backend.create("bare", profile())
            assert WRONG_KEY not in repr(backend) + repr(vars(backend)["_adapter"])
    assert WRONG_KEY not in shown(refusal.value)
    assert WRONG_KEY not in caplog.text


@pytest.mark.parametrize(
    "use",
    [
        lambda sandbox: sandbox.exec_code("1"),
        lambda sandbox: sandbox.run_command("true"),
        lambda sandbox: sandbox.put("file", b""),
        lambda sandbox: sandbox.get("file"),
    ],
)
async def test_every_use_of_a_dead_sandbox_says_so(sandbox, service, use):
    service.machines[sandbox.id].kill()
    with patience():
        with pytest.raises(SandboxLost):
            await use(sandbox)
        await sandbox.wait_closed()
    assert not sandbox.is_alive


async def test_a_sandbox_that_dies_under_its_code_is_lost_and_nothing_is_repeated(sandbox, service):
    code = "import time\nprint('begun')\ntime.sleep(60)"

    async def die() -> None:
        await service.until(lambda: service.printed.endswith("begun\n"))
        service.machines[sandbox.id].kill()

    with patience():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(die)
            outcome = None
            try:
                outcome = await sandbox.exec_code(code)
            except SandboxLost:
                pass
    assert outcome is None or outcome.error.name == "WorkerDied"
    assert service.executed.count(code) == 1
    assert not sandbox.is_alive


async def test_a_gateway_that_fails_once_costs_no_sandbox(sandbox, service):
    service.fail("POST /execute", 502, times=1)
    with patience():
        with pytest.raises(SandboxError) as failure:
            await sandbox.exec_code("1")
        assert not isinstance(failure.value, SandboxLost)
        assert (await sandbox.exec_code("2")).result == "2"


@pytest.mark.parametrize("status", [429, 503])
async def test_a_refused_execution_is_a_limit_and_was_not_started(sandbox, service, status):
    service.fail("POST /execute", status, times=1)
    before = len(service.executed)
    with patience(), pytest.raises(SandboxLimit):
        await sandbox.exec_code("never = 1")
    assert "never = 1" not in service.executed[before:]


async def test_our_deadline_holds_when_the_service_does_not_answer(service):
    async with open_e2b(settings(request_timeout_s=0.4)) as backend:
        with patience():
            sandbox = await backend.create("bare", profile())
            uses = {
                "POST /files": lambda: sandbox.put("f", b"x"),
                "POST /process.Process/Start": lambda: sandbox.run_command("true"),
                "POST /filesystem.Filesystem/Stat": lambda: sandbox.get("f"),
            }
            for request, use in uses.items():
                service.fail(request, until=anyio.Event(), times=1)
                with anyio.fail_after(4), pytest.raises(SandboxError, match="no answer within|timed out"):
                    await use()
            assert sandbox.is_alive


async def test_a_command_that_prints_all_the_time_ends_at_its_deadline(sandbox):
    with patience():
        done = await sandbox.run_command("while true; do echo x; sleep 0.01; done", timeout=0.5)
    assert done.timed_out
    assert done.stdout.startswith("x\nx\n")


async def test_a_service_that_cannot_be_reached_is_unavailable(service, monkeypatch):
    monkeypatch.setenv("E2B_API_URL", "http://127.0.0.1:1")
    with patience():
        async with open_e2b(settings(request_timeout_s=1)) as backend:
            with pytest.raises(SandboxUnavailable, match="creating a sandbox"):
                await backend.create("bare", profile())
