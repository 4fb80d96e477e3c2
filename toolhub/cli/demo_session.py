"""The session that `toolhub demo` plays: agents that write notes, keep a table and ask for the time."""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from toolhub.config import Config, parse_config
from toolhub.errors import SessionLost, ToolhubError
from toolhub.hub import Hub
from toolhub.task import HubTask

ROUNDS = 12
# The pace of an agent, so that a person can follow what happens.
THINK_S = 0.15
# Of the comparison, after the agents are done. The first calls of a new server are slower than all others.
WARM_UP_CALLS, KEPT_CALLS, SPAWN_CALLS = 10, 100, 3
TIME_SERVER = {
    "command": sys.executable,
    "args": ["-m", "mcp_server_time"],
    "stateful": False,
    "tools": {"policy": {"get_current_time": {"read_only": True}}},
}


@dataclass
class Agent:
    """What the live table shows of one task."""

    name: str
    calls: int = 0
    errors: int = 0
    last: str = ""
    event: str = ""
    sandbox: str = ""
    """Its id; empty where no sandbox can be made."""
    remembered: int = 0
    """Rounds that the Python in its sandbox still knew of at the end."""


@dataclass
class Outcome:
    """What happened, for the closing table."""

    agents: list[Agent]
    kills: list[str] = field(default_factory=list)
    starts: int = 0
    deaths: int = 0
    retries: int = 0
    rounds: int = ROUNDS
    kept_ms: float = 0.0
    kept_calls: int = KEPT_CALLS
    spawned_ms: float = 0.0
    spawned_calls: int = SPAWN_CALLS
    leftovers: int = 0
    no_sandbox: str = ""
    """Why there were no sandboxes, if there were none."""

    @property
    def calls(self) -> int:
        return sum(agent.calls for agent in self.agents)


def config(workdir: Path) -> Config:
    """Servers that need no key and no network: four of ours, one from PyPI, and that one again per call.

    What each agent has for itself is forked, so that all agents begin at once.
    """
    return parse_config(
        {
            "hub": {"state_dir": str(workdir / "state")},
            "servers": {
                "clock": {"builtin": "clock", "share": "hub"},
                "files": {"builtin": "files", "share": "hub", "options": {"root": str(workdir)}},
                "sqlite": {
                    "command": sys.executable,
                    "args": ["-m", "toolhub_servers", "sqlite"],
                    "spawn": "fork",
                    "preload": ["toolhub_servers.sqlite.server"],
                },
                "python": {"builtin": "python"},
                "time": {**TIME_SERVER, "spawn": "fork", "preload": ["mcp_server_time"]},
                "time-per-call": {**TIME_SERVER, "share": "call"},
            },
        }
    )


async def play(hub: Hub, agents: list[Agent], workdir: Path, changed: Callable[[], None]) -> Outcome:
    """Run every agent at once; kill two servers on purpose half-way."""
    outcome = Outcome(agents)
    victims = {agents[0].name: "time", agents[-1].name: "sqlite"}
    async with anyio.create_task_group() as running:
        for agent in agents:
            running.start_soon(_play_one, hub, agent, outcome, victims.get(agent.name), changed)
    counted = hub.statistics()
    outcome.starts, outcome.deaths, outcome.retries = counted.starts, counted.deaths, counted.retries
    return outcome


async def _play_one(hub: Hub, agent: Agent, outcome: Outcome, victim: str | None, changed: Callable[[], None]) -> None:
    async with hub.task(agent.name, run="demo") as task:
        agent.last = "starting its servers"
        changed()
        await task.warm()
        await _call(task, agent, changed, "sqlite", "execute", sql="CREATE TABLE notes (round INTEGER, text TEXT)")
        await _start_python(task, agent, outcome, changed)
        for number in range(ROUNDS):
            if number == ROUNDS // 2 and victim is not None:
                _kill(task, agent, victim, outcome)
            await _round(task, agent, number, changed)
        if agent.sandbox:
            await _count_rounds(task, agent, changed)
        agent.last = "done"
        changed()


async def _start_python(task: HubTask, agent: Agent, outcome: Outcome, changed: Callable[[], None]) -> None:
    """Give the agent a sandbox, where this machine has any."""
    answer = await _call(task, agent, changed, "python", "create_sandbox")
    before, found, sandbox = answer.partition("sandbox_id: ")
    if not found:
        outcome.no_sandbox = before
        return
    agent.sandbox = sandbox
    await _run_python(task, agent, changed, "rounds = []")


async def _run_python(task: HubTask, agent: Agent, changed: Callable[[], None], code: str) -> str:
    return await _call(task, agent, changed, "python", "run_python_code", code_block=code, sandbox_id=agent.sandbox)


async def _count_rounds(task: HubTask, agent: Agent, changed: Callable[[], None]) -> None:
    answer = await _run_python(task, agent, changed, "len(set(rounds))")
    agent.remembered = int(answer.partition("Result(")[2].partition(")")[0] or 0)


async def _round(task: HubTask, agent: Agent, number: int, changed: Callable[[], None]) -> None:
    await _call(task, agent, changed, "time", "get_current_time", timezone="UTC")
    note = f"round {number}"
    try:
        await _call(
            task,
            agent,
            changed,
            "sqlite",
            "execute",
            sql="INSERT INTO notes VALUES (?, ?)",
            parameters=[number, note],
        )
    except SessionLost as exc:
        if not exc.state_lost:
            raise
        # What a model would do when it is told that its table is gone.
        agent.errors += 1
        agent.event = "told of the loss; made table anew"
        await _call(
            task,
            agent,
            changed,
            "sqlite",
            "execute",
            sql="CREATE TABLE IF NOT EXISTS notes (round INTEGER, text TEXT)",
        )
    await _call(task, agent, changed, "files", "write_file", path=f"{agent.name}.txt", text=note)
    if agent.sandbox:
        await _run_python(task, agent, changed, f"rounds.append({number})")
    await _call(task, agent, changed, "clock", "get_current_time", timezone="Asia/Singapore")
    await anyio.sleep(THINK_S)


async def _call(
    task: HubTask, agent: Agent, changed: Callable[[], None], server: str, tool: str, **arguments: Any
) -> str:
    """Call a tool as the agent, and return the text that it answered."""
    began = time.perf_counter()
    result = await task.call(server, tool, arguments, timeout=30)
    took = time.perf_counter() - began
    if result.is_error:
        raise ToolhubError(f"{server}/{tool}: {result.text}")
    agent.calls += 1
    agent.last = f"{server}/{tool}  {took * 1e3:.1f} ms"
    changed()
    return result.text


def _kill(task: HubTask, agent: Agent, server: str, outcome: Outcome) -> None:
    pid = next(slot.pid for slot in task.statistics().slots if slot.server == server)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        outcome.kills.append(f"{server} of {agent.name}")
        agent.event = f"its {server} server: kill -9"


async def compare(hub: Hub, outcome: Outcome) -> None:
    """Measure one tool alone: on a server that is kept, and with a process per call, as MiroFlow does today."""
    async with hub.task("alone", run="demo") as task:
        await _median_ms(task, "time", WARM_UP_CALLS)
        outcome.kept_ms = await _median_ms(task, "time", KEPT_CALLS)
        outcome.spawned_ms = await _median_ms(task, "time-per-call", SPAWN_CALLS)


async def _median_ms(task: HubTask, server: str, calls: int) -> float:
    """Make calls one after another."""
    seconds = []
    for _ in range(calls):
        began = time.perf_counter()
        await task.call(server, "get_current_time", {"timezone": "UTC"}, timeout=60)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1e3
