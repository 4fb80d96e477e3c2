"""`toolhub tasks`: the tasks of a running hub, and what waits at its limits."""

from __future__ import annotations

import functools
import textwrap
import time
from collections.abc import Collection, Sequence
from typing import Any, Literal

from rich.markup import escape
from rich.table import Table

from toolhub.cli.shared import DEFAULT_HUB, console, print_json, run
from toolhub.client import connect


def show_tasks(hub: str | None, token: str | None, as_json: bool) -> None:
    """Print the tasks of a running hub."""
    address = hub or DEFAULT_HUB
    statistics = run(functools.partial(_statistics, address, token))
    if as_json:
        print_json(statistics)
        return
    out = console()
    out.print(
        f"hub {escape(address)}  pid {statistics['pid']}  calls {statistics['calls']}  errors {statistics['errors']}  "
        f"starts {statistics['starts']}  deaths {statistics['deaths']}  retries {statistics['retries']}"
    )
    out.print(tasks_table(statistics["tasks"]) if statistics["tasks"] else "no open tasks")
    if broken := [server for server in statistics["servers"] if server["state"] != "ok"]:
        out.print("\nservers that do not work now")
        for server in broken:
            out.print(_broken(server))
    out.print()
    out.print(_limiters(statistics["limiters"]))
    out.print(_room(statistics["budget"]))


def _table(columns: Sequence[str], texts: Collection[str]) -> Table:
    """texts: the columns of words; the others are of numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "left" if column in texts else "right"
        table.add_column(column, justify=justify, overflow="fold", min_width=len(column))
    return table


def tasks_table(tasks: list[dict[str, Any]]) -> Table:
    """A row for each task. If the model keeps one waiting, a column says for how long and why."""
    columns = ["task", "run", "age", "lease left", "calls", "errors", "in flight", "waiting", "servers"]
    has_paused = any(task["paused"] for task in tasks)
    table = _table([*columns, *["paused"] * has_paused], ("task", "run", "servers", "paused"))
    for task in tasks:
        table.add_row(*_task_row(task), *[escape(task["paused"])] * has_paused)
    return table


def _broken(server: dict[str, Any]) -> str:
    """One server that does not work: since when, how often it died, and its last error."""
    state = server["state"].replace("_", " ")
    since = _duration(time.time() - server["since"])
    head = f"{server['server']}: {state} for {since}, {server['deaths']} deaths, last in task {server['task']}"
    return escape(head + "\n" + textwrap.indent(server["last_error"], "    "))


def _limiters(limiters: list[dict[str, Any]]) -> Table:
    """The limits that all tasks share, with their use."""
    table = _table(("limit on", "at once", "in use", "waiting", "refused", "mean wait"), ("limit on",))
    for limiter in limiters:
        wait = f"{limiter['waited_seconds'] / limiter['waits'] * 1e3:.0f} ms" if limiter["waits"] else "-"
        numbers = (str(limiter[name]) for name in ("limit", "in_use", "waiting", "refusals"))
        table.add_row(escape(limiter["name"]), *numbers, wait)
    return table


def _room(budget: dict[str, Any]) -> str:
    """The processes, descriptors and memory of all sessions, and how often room was made."""

    def of(used: int | None, limit: int | None, unit: int = 1) -> str:
        return ("?" if used is None else f"{used / unit:,.0f}") + (f" of {limit / unit:,.0f}" if limit else "")

    parts = [
        f"processes {of(budget['processes'], budget['processes_limit'])}",
        f"descriptors {of(budget['open_files'], budget['open_files_limit'])}",
    ]
    if budget["memory_limit"]:
        parts.append(f"MiB {of(budget['memory_bytes'], budget['memory_limit'], 2**20)}")
    room = f"waiting for room {budget['waiting']}  idle sessions ended to make room {budget['evictions']}"
    return "  ".join(parts) + "\n" + room


async def _statistics(address: str, token: str | None) -> dict[str, Any]:
    async with connect(address, token=token) as remote:
        return dict(await remote.statistics())


def _task_row(task: dict[str, Any]) -> list[str]:
    lease = task["lease_seconds"]
    servers = ", ".join(f"{slot['server']} {slot['state'].lower()}" for slot in task["slots"])
    return [
        escape(task["id"]),
        escape(task["run"]),
        _duration(task["age_seconds"]),
        "-" if lease is None else _duration(lease),
        str(task["calls"]),
        str(task["errors"]),
        str(task["in_flight"]),
        str(task["waiting"]),
        escape(servers),
    ]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
