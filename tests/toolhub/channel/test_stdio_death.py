"""A stdio server dies, idle or busy: it is noticed at once, told once, and the next call has a new process."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from real_processes import HubFactory, Process, eventually, fixture, pid_of, state_of

from toolhub import CircuitOpen, HubTask, SessionLost
from toolhub.config.server import RestartSettings, ToolRules, ToolSettings

pytestmark = pytest.mark.anyio

AT_ONCE = RestartSettings(backoff_s=0, max_deaths=1000)


async def kill_idle(task: HubTask) -> Process:
    """Kill the server `echo` between two calls and wait until its slot has noticed by itself."""
    process = Process.of(pid_of(task, "echo"))
    process.kill()
    await eventually(lambda: state_of(task, "echo") == "BACKOFF")
    return process


@pytest.mark.quick
async def test_an_idle_death_is_noticed_and_a_stateless_server_just_works_again(hubs: HubFactory) -> None:
    async with hubs.task(fixture("echo", stateful=False)) as task:
        await task.call("echo", "counter")
        killed = await kill_idle(task)
        assert (await task.call("echo", "pid")).text != str(killed.pid)
        (slot,) = task.statistics().slots
        assert (slot.starts, slot.deaths) == (2, 1)


async def test_a_stateful_server_says_once_that_its_state_is_gone(hubs: HubFactory) -> None:
    async with hubs.task(fixture("echo", stateful=True)) as task:
        assert (await task.call("echo", "counter")).text == "1"
        await kill_idle(task)
        with pytest.raises(SessionLost, match="nothing was sent") as caught:
            await task.call("echo", "counter")
        assert caught.value.state_lost and caught.value.sent == "no"
        assert (await task.call("echo", "counter")).text == "1"
        assert (await task.call("echo", "counter")).text == "2"


async def test_a_stateful_server_that_was_never_called_lost_nothing(hubs: HubFactory) -> None:
    async with hubs.task(fixture("echo", stateful=True)) as task:
        await task.warm()
        await kill_idle(task)
        assert (await task.call("echo", "counter")).text == "1"


async def test_an_exit_during_a_call_tells_the_exit_code_and_that_the_outcome_is_unknown(hubs: HubFactory) -> None:
    async with hubs.task(fixture("echo", restart=AT_ONCE)) as task:
        with pytest.raises(SessionLost, match="exited with 5; 'die' may or may not have been executed") as caught:
            await task.call("echo", "die", {"code": 5})
        lost = caught.value
        assert (lost.sent, lost.exit_code, lost.server, lost.tool) == ("maybe", 5, "echo", "die")
        assert lost.call_id == "t-1"
        assert (await task.call("echo", "echo", {"text": "back"})).text == "back"


async def test_a_signal_during_a_call_is_named(hubs: HubFactory) -> None:
    async with hubs.task(fixture("echo", restart=AT_ONCE)) as task:
        process = Process.of(int((await task.call("echo", "pid")).text))
        async with anyio.create_task_group() as callers:

            async def call() -> None:
                with pytest.raises(SessionLost, match="killed by signal 9") as caught:
                    await task.call("echo", "sleep", {"seconds": 60})
                assert caught.value.exit_code == -9 and caught.value.sent == "maybe"

            callers.start_soon(call)
            await eventually(lambda: task.statistics().slots[0].in_flight)
            process.kill()


async def test_the_last_stderr_lines_explain_a_death(hubs: HubFactory, tmp_path: Path) -> None:
    script = tmp_path / "talkative.py"
    script.write_text(
        "import os, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2] / 'fixtures')!r})\n"
        "from minimal import Server\n"
        "server = Server('talkative')\n"
        "@server.tool('crash')\n"
        "def crash(call):\n"
        "    print('out of cheese:', os.environ['API_KEY'], file=sys.stderr, flush=True)\n"
        "    os._exit(9)\n"
        "server.run()\n"
    )
    spec = fixture("echo", env={"API_KEY": "sk-0123456789abcdef"}).model_copy(update={"args": ["-S", str(script)]})
    async with hubs.task(spec) as task:
        with pytest.raises(SessionLost, match="out of cheese") as caught:
            await task.call("echo", "crash")
    assert "sk-0123456789abcdef" not in str(caught.value)


async def test_one_death_is_one_restart_and_no_key_is_executed_twice(hubs: HubFactory, tmp_path: Path) -> None:
    """32 callers, one process: the ledger is the server's own account of what it executed."""
    ledger = tmp_path / "ledger"
    ledger.touch()
    spec = fixture("echo", stateful=False, restart=AT_ONCE, env={"LEDGER": str(ledger), "LEDGER_DELAY": "60"})
    rounds, callers = 5, 32
    outcomes: list[str] = []

    async def call(task: HubTask, key: str) -> None:
        try:
            await task.call("echo", "ledger", {"key": key})
        except SessionLost as exc:
            outcomes.append(exc.sent)

    async with hubs.task(spec, within=60) as task:
        for number in range(rounds):
            process = Process.of(int((await task.call("echo", "pid")).text))
            async with anyio.create_task_group() as group:
                for caller in range(callers):
                    group.start_soon(call, task, f"{number}-{caller}")
                await eventually(lambda n=number: ledger.read_text().count(f"{n}-") > callers // 2)
                process.kill()
        await task.call("echo", "pid")
        (slot,) = task.statistics().slots
        assert (slot.starts, slot.deaths) == (rounds + 1, rounds)
    executed = ledger.read_text().split()
    assert len(executed) == len(set(executed))
    assert outcomes == ["maybe"] * (rounds * callers)


async def test_a_call_that_is_declared_idempotent_is_made_again(hubs: HubFactory, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    spec = fixture(
        "echo",
        stateful=False,
        restart=AT_ONCE,
        env={"LEDGER": str(ledger), "LEDGER_DELAY": "0.3"},
        tools=ToolRules(policy={"ledger": ToolSettings(idempotent=True)}),
    )
    with anyio.fail_after(30):
        async with hubs(spec) as hub, hub.task("t") as task, anyio.create_task_group() as callers:

            async def call() -> None:
                assert (await task.call("echo", "ledger", {"key": "k"})).text == "k"

            callers.start_soon(call)
            await eventually(ledger.exists)
            Process.of(pid_of(task, "echo")).kill()
            await eventually(lambda: ledger.read_text().split() == ["k", "k"])
            await eventually(lambda: not task.counts.in_flight)
            assert hub.statistics().retries == 1


async def test_a_server_that_dies_too_often_is_given_up_with_its_last_words(hubs: HubFactory) -> None:
    rules = RestartSettings(backoff_s=0, max_deaths=2, cooldown_s=None)
    async with hubs.task(fixture("echo", stateful=False, restart=rules)) as task:
        for _ in range(3):
            with pytest.raises(SessionLost):
                await task.call("echo", "die", {"code": 5})
        assert state_of(task, "echo") == "CIRCUIT_OPEN"
        await eventually(lambda: "exited with 5" in str(task.statistics().slots[0].last_error))
        with pytest.raises(CircuitOpen, match="after 3 deaths.*exited with 5") as caught:
            await task.call("echo", "echo", {"text": ""})
        assert caught.value.sent == "no" and caught.value.deaths == 3
