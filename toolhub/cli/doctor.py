"""`toolhub doctor`: start every configured server; report what works, and for each failure the cause and the fix."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import platform
import re
import resource
import shutil
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from toolhub.cli.shared import console, find_config, log_to_stderr, print_json
from toolhub.cli.shared import run as run_async
from toolhub.config import Config, ServerSpec, load_config
from toolhub.errors import ToolhubError
from toolhub.extensions import builtin_servers, find_builtin
from toolhub.hub import Hub
from toolhub.spawn.fork.server import FALLBACKS, read_fallbacks
from toolhub.spawn.supervisor import descendants
from toolhub.task import HubTask
from toolhub_runtime import install_command

# A module that comes with this extra and with no other.
EXTRAS = {
    "hub": "prometheus_client",
    "servers": "stamina",
    "pages": "trafilatura",
    "data": "matplotlib",
    "e2b": "e2b_code_interpreter",
    "browser": "playwright",
    "agent": "json_repair",
}
_NO_MODULE = re.compile(r"No module named '?([\w.]+)")
_VARIABLE = re.compile(r"\$\{(\w+)\}")

Finding = dict[str, str]
"""check, status (`ok`, `weaker` or `note`), detail."""


@dataclass(frozen=True)
class Report:
    """One server's health. Seconds and bytes."""

    server: str
    ok: bool
    transport: str
    share: str
    start_seconds: float | None = None
    protocol: str | None = None
    era: str | None = None
    tools: int | None = None
    rss_bytes: int | None = None
    error: str | None = None
    fix: str | None = None
    notes: tuple[str, ...] = ()
    """Missing options that it works without, and their consequences."""


def run(path: Path | None, as_json: bool) -> None:
    """Print the report. Exit with 1 if a server failed, or lacks an option that it needs."""
    log_to_stderr("error")
    config = load_config(find_config(path))
    reports, sandbox = run_async(functools.partial(examine, config))
    machine = [*check_machine(config), *check_forks(config), *sandbox]
    if as_json:
        print_json({"machine": machine, "servers": [dataclasses.asdict(report) for report in reports]})
    else:
        _print(console(), machine, reports)
    if not all(report.ok for report in reports):
        sys.exit(1)


async def examine(config: Config) -> tuple[list[Report], list[Finding]]:
    """Start every server at once (within the hub's limit) and check each; create a sandbox and check it."""
    reports: dict[str, Report] = {}
    async with Hub(config) as hub, hub.task("doctor") as task:

        async def check(name: str, spec: ServerSpec) -> None:
            reports[name] = await _examine_one(hub, task, spec)

        async with anyio.create_task_group() as checking:
            for name, spec in task.specs.items():
                checking.start_soon(check, name, spec)
        sandbox = await _examine_sandbox(hub)
    return [reports[name] for name in config.servers], sandbox


async def _examine_sandbox(hub: Hub) -> list[Finding]:
    """Check which protections a sandbox really has, and why it lacks others."""
    if hub.sandboxes is None:
        return [_finding("sandbox", "note", "no sandbox package is installed")]
    try:
        findings = (await hub.sandboxes.check()).findings
    except ToolhubError as exc:
        findings = (("sandbox", "weaker", str(exc)),)
    return [_finding(*finding) for finding in findings]


async def _examine_one(hub: Hub, task: HubTask, spec: ServerSpec) -> Report:
    report = Report(spec.name, False, spec.transport, spec.share)
    try:
        tools = await task.tools(spec.name, fresh=True)
    except ToolhubError as exc:
        return dataclasses.replace(report, error=str(exc), fix=advice(spec, str(exc)))
    everything = hub.statistics()
    slots = [slot for slot in (*everything.shared, *everything.tasks[0].slots) if slot.server == spec.name]
    slot = slots[0] if slots else None
    missing = missing_options_of(spec, {tool.name for tool in tools})
    needed = [option for option in missing if option.is_needed]
    losses = dict.fromkeys(option.loss for option in missing if not option.is_needed)
    tolerable = [[option for option in missing if option.loss == loss and not option.is_needed] for loss in losses]
    return dataclasses.replace(
        report,
        ok=not needed,
        error=_in_words(needed) if needed else None,
        fix=_remedy(needed) if needed else None,
        notes=tuple(f"{_in_words(alike)}; {_remedy(alike)}" for alike in tolerable),
        tools=len(tools),
        start_seconds=slot.start_seconds if slot else None,
        protocol=slot.protocol if slot else None,
        era=slot.era if slot else None,
        rss_bytes=rss_of_tree(slot.pid) if slot and slot.pid else None,
    )


def missing_options_of(spec: ServerSpec, tools: Collection[str]) -> list[Any]:
    """Return the options that are not set although a tool of this builtin server needs them; see `BuiltinContext`.

    tools: those that can be called. Options that only other tools need are left out.
    """
    if spec.builtin is None:
        return []
    module, _ = find_builtin(spec.builtin)
    find = getattr(sys.modules.get(module), "missing_options", None)
    return [option for option in find(**spec.options) if not option.tool or option.tool in tools] if find else []


def _in_words(missing: list[Any]) -> str:
    options = " and ".join(option.option for option in missing)
    losses = "; ".join(dict.fromkeys(option.loss for option in missing))
    return f"{options} {'are' if len(missing) > 1 else 'is'} not set: {losses}"


def _remedy(missing: list[Any]) -> str:
    given = " and ".join(f"{option.option} as ${{{option.variable}}}" for option in missing)
    variables = " and ".join(option.variable for option in missing)
    return f"give {given} in its `options`, and set {variables}"


def advice(spec: ServerSpec, error: str) -> str:
    """Return what to try for a failure."""
    command = spec.command_line
    if "not found on PATH" in error:
        return f"install {spec.command!r}, or write its full path into `command`"
    if (module := _NO_MODULE.search(error)) and command:
        found = shutil.which(spec.command or "") or spec.command
        return (
            f"{found} does not have the module {module[1]}: install it there, or write into `command` the full path of "
            f"an interpreter that has it; the hub's own is {sys.executable}"
        )
    if "working directory" in error:
        return "create the directory or correct `cwd`"
    if "did not answer the handshake" in error:
        return (
            f"run it by hand: `{command}`; if it is only slow, raise start_timeout_s"
            if command
            else "is it an MCP endpoint?"
        )
    if spec.transport in ("http", "sse"):
        return "is the server running, is the URL right (.../mcp or .../sse), are the headers (authorization) right?"
    if spec.transport == "builtin":
        return _advice_on_builtin(spec.builtin or "", error)
    return f"run it by hand to see more: `{command}`"


def _advice_on_builtin(builtin: str, error: str) -> str:
    try:
        module, factory = find_builtin(builtin)
    except LookupError:
        return f"correct `builtin`, or install the package that has it; our own servers: {install_command('servers')}"
    is_listed = f"{module}:{factory}" in builtin_servers().values()
    page = "`toolhub servers`" if is_listed else f"the documentation of {module}"
    if "ModuleNotFoundError" in error or "MissingExtra" in error:
        if "pip install" in error:
            return "run that pip command where toolhub is installed"
        return f"correct `builtin`, or install what {module} imports"
    if "AttributeError" in error and f"'{factory}'" in error:
        return f"correct `builtin`: {module} has no {factory}; our own servers have create_server"
    if variables := dict.fromkeys(_VARIABLE.findall(error)):
        return f"set {' and '.join(variables)}, and have `options` take it as the message says"
    if "is not a directory" in error:
        return "make that folder, or correct the option or the variable in it (TOOLHUB_DOCS in configs/local.yaml)"
    if any(words in error for words in ("Extra inputs are not permitted", "unexpected keyword argument")):
        return f"remove that option or correct its name; {page} has every option"
    if "install" in error:
        return "install what the message names, or set `disabled: true` for this server"
    return f"correct that option; {page} has every option"


def rss_of_tree(pid: int) -> int | None:
    """Return the resident bytes of a process and everything below it; None without /proc."""
    total = 0
    for member in [pid, *descendants(pid)]:
        try:
            total += int(Path(f"/proc/{member}/statm").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            continue
    return total * resource.getpagesize() or None


def check_machine(config: Config) -> list[Finding]:
    """Report what the machine supports, and what works less well on it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    node = shutil.which("node")
    return [
        _finding("python", "ok", platform.python_version()),
        _finding("supervision", "ok", "subreaper and pidfd: no descendant survives the hub")
        if sys.platform == "linux"
        else _finding(
            "supervision",
            "weaker",
            f"{platform.system()} has no subreaper: a grandchild that detached may survive a killed server",
        ),
        _check_state(config),
        _finding("uvloop", "ok", "installed")
        if _has("uvloop")
        else _finding("uvloop", "weaker", "not installed: calls take about 10 % longer"),
        _finding(
            "open files",
            "ok" if soft >= 4096 else "weaker",
            f"soft limit {soft} (a session takes 4; the hub raises it to the hard limit)",
        ),
        _finding("node", "ok", node) if node else _finding("node", "note", "not on PATH: npx servers cannot start"),
        _finding("extras", "ok", ", ".join(name for name, module in EXTRAS.items() if _has(module)) or "none"),
    ]


def _finding(check: str, status: str, detail: str) -> Finding:
    return {"check": check, "status": status, "detail": detail}


def check_forks(config: Config) -> list[Finding]:
    """Report which servers with `spawn: fork` were executed instead at their last start, and why."""
    forked = sorted(name for name, spec in config.servers.items() if spec.spawn == "fork" and not spec.disabled)
    fallbacks = read_fallbacks(config.hub.state_path / FALLBACKS)
    found = [
        _finding("fork", "weaker", f"server {name!r} is executed instead of forked: {fallbacks[name]}")
        for name in forked
        if name in fallbacks
    ]
    if forked and not found:
        return [_finding("fork", "ok", ", ".join(forked))]
    return found


def _check_state(config: Config) -> Finding:
    folder = config.hub.state_path
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if os.access(existing, os.W_OK):
        return _finding("state", "ok", str(folder))
    problem = "cannot be written, so processes that a crashed hub left cannot be killed; set hub.state_dir"
    return _finding("state", "weaker", f"{folder} {problem}")


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


_STYLES = {"ok": "green", "weaker": "yellow", "note": "cyan"}


def _print(out: Console, machine: list[Finding], reports: list[Report]) -> None:
    checks = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for _ in ("check", "status", "detail"):
        checks.add_column(overflow="fold")
    for check in machine:
        style = _STYLES[check["status"]]
        checks.add_row(check["check"], f"[{style}]{check['status']}[/]", escape(check["detail"]))
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("server", "status", "start", "protocol", "tools", "RSS", "via", "share"):
        is_number = column in ("start", "tools", "RSS")
        table.add_column(column, justify="right" if is_number else "left", overflow="fold", no_wrap=is_number)
    for report in reports:
        table.add_row(*_row(report))
    out.print(Group(checks, "", table))
    for report in reports:
        if report.error:
            out.print(f"\n[red]{escape(report.server)}[/]: {escape(report.error)}", soft_wrap=True)
            out.print(f"  [bold]fix:[/] {escape(report.fix or '')}", soft_wrap=True)
        for note in report.notes:
            out.print(f"\n[cyan]{escape(report.server)}[/]: {escape(note)}", soft_wrap=True)
    failed = sum(not report.ok for report in reports)
    out.print(f"\n{len(reports) - failed} of {len(reports)} servers work")


def _row(report: Report) -> list[str]:
    return [
        escape(report.server),
        "[green]ok[/]" if report.ok else "[red]failed[/]",
        f"{report.start_seconds * 1e3:.0f} ms" if report.start_seconds is not None else "-",
        f"{report.protocol} ({report.era})" if report.protocol else "-",
        str(report.tools) if report.tools is not None else "-",
        f"{report.rss_bytes / 2**20:.0f} MB" if report.rss_bytes else "-",
        report.transport,
        report.share,
    ]
