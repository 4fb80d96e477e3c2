"""`toolhub demo`: the live view and the closing table."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from toolhub.cli.shared import console, log_to_stderr, print_json, scratch_folder
from toolhub.cli.shared import run as run_async
from toolhub.errors import MissingExtra

if TYPE_CHECKING:
    from toolhub.cli.demo_session import Agent, Outcome


def run(tasks: int, as_json: bool) -> None:
    """Play the session and print what happened."""
    if importlib.util.find_spec("mcp_server_time") is None:
        raise MissingExtra("hub,servers", "the demo")
    log_to_stderr("error")
    out = console(stderr=as_json)
    out.print(
        f"[bold]toolhub demo[/]: {tasks} agents. Each has a SQLite server, a time server (from PyPI)\n"
        "and a Python sandbox of its own; all share a clock and a file server.\n"
        "Half-way two servers are killed with SIGKILL.\n"
    )
    # Importing a hub takes most of a second; until then there is something to read.
    from toolhub.cli.demo_session import Agent
    from toolhub.spawn.supervisor import descendants

    agents = [Agent(f"agent-{number}") for number in range(1, tasks + 1)]
    with scratch_folder("demo") as folder:
        outcome = run_async(functools.partial(_session, agents, folder, out))
    outcome.leftovers = len(descendants(os.getpid()))
    if as_json:
        print_json(dataclasses.asdict(outcome))
    else:
        _print_outcome(out, outcome)


async def _session(agents: list[Agent], workdir: Path, out: Console) -> Outcome:
    from toolhub.cli import demo_session
    from toolhub.hub import Hub

    async with Hub(demo_session.config(workdir)) as hub:
        with Live(_table(agents), console=out, refresh_per_second=8) as live:
            changed: Callable[[], None] = lambda: live.update(_table(agents))  # noqa: E731
            outcome = await demo_session.play(hub, agents, workdir, changed)
        out.print("\nNow one tool alone: its server kept, then a process per call, as in MiroFlow ...")
        await demo_session.compare(hub, outcome)
    return outcome


def _table(agents: list[Agent]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("task", no_wrap=True)
    table.add_column("calls", justify="right", no_wrap=True)
    table.add_column("last call", min_width=26, no_wrap=True)
    table.add_column("event", style="yellow", no_wrap=True)
    for agent in agents:
        table.add_row(agent.name, str(agent.calls), agent.last, agent.event)
    return table


def _remembered(outcome: Outcome) -> tuple[str, str]:
    if outcome.no_sandbox:
        return "-", f"no sandbox here: {outcome.no_sandbox}"
    least = min(agent.remembered for agent in outcome.agents)
    return f"{least} of {outcome.rounds}", "each agent's sandbox keeps them"


def _print_outcome(out: Console, outcome: Outcome) -> None:
    table = Table(box=None, padding=(0, 3, 0, 0), show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    told = sum(agent.errors for agent in outcome.agents)
    ratio = outcome.spawned_ms / outcome.kept_ms if outcome.kept_ms else 0.0
    rows = [
        ("calls answered", str(outcome.calls), f"in {len(outcome.agents)} tasks"),
        ("servers killed", str(len(outcome.kills)), "; ".join(outcome.kills)),
        ("calls sent again", str(outcome.retries), "only of tools declared read-only"),
        ("calls that noticed", str(told), "told once that state was lost"),
        ("rounds Python remembers", *_remembered(outcome)),
        ("processes left over", str(outcome.leftovers), "after the hub closed"),
        ("", "", ""),
        ("a call, its server kept", f"{outcome.kept_ms:.2f} ms", f"time server, median of {outcome.kept_calls}"),
        (
            "a call, a process per call",
            f"{outcome.spawned_ms:.0f} ms",
            f"time server, median of {outcome.spawned_calls}",
        ),
        ("ratio", f"{ratio:,.0f} x", "one at a time, nothing else running"),
    ]
    for row in rows:
        table.add_row(*row)
    out.print()
    out.print(table)
