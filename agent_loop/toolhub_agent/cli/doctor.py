"""`toolhub doctor --llm URL`: what a model server gives an agent, and what it could."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from toolhub.cli.shared import console, find_config, log_to_stderr, print_json
from toolhub.cli.shared import run as run_async
from toolhub.config import Config, LlmSettings, load_config, parse_config
from toolhub.errors import ConfigError
from toolhub_agent.doctor import CheckResult, DoctorReport, run_checks
from toolhub_agent.llm.endpoint_pool import open_endpoint_pool
from toolhub_agent.llm.transport import engine_root
from toolhub_agent.sweep import CHECK_CONNECT_S

_STYLES = {"ok": "green", "weaker": "yellow", "note": "cyan"}


def run(path: Path | None, url: str, as_json: bool) -> None:
    """Print the report; exit 1 if the server could not be reached. path: a config, for its key and agent."""
    log_to_stderr("error")
    config = _config(path)
    settings = settings_for(config, url)
    wanted = config.agent.max_context_tokens if config is not None else None
    report = run_async(functools.partial(_examine, settings, wanted))
    if as_json:
        print_json(_as_data(report))
    else:
        _print(console(), report)
    if not report.is_reachable:
        sys.exit(1)


def settings_for(config: Config | None, url: str) -> LlmSettings:
    """How to talk to a server. The config's key and headers are for its own endpoints and go to no other.

    A server that is not there is told soon: a connection may take `CHECK_CONNECT_S`.
    """
    chosen = _of_config(config, url)
    return chosen.model_copy(update={"connect_timeout_s": min(chosen.connect_timeout_s, CHECK_CONNECT_S)})


def _of_config(config: Config | None, url: str) -> LlmSettings:
    endpoint = f"{engine_root(url)}/v1"
    alone = parse_config({"llm": {"endpoints": [endpoint]}}, path="--llm", environ={}).llm
    assert alone is not None
    own = config.llm if config is not None else None
    if own is None:
        return alone
    if engine_root(endpoint) in map(engine_root, own.endpoints):
        return own.model_copy(update={"endpoints": alone.endpoints})
    return alone.model_copy(update={"hints": own.hints})


def _config(path: Path | None) -> Config | None:
    """The named one, or the one of this directory if there is one."""
    try:
        found = find_config(path)
    except ConfigError:
        return None
    return load_config(found)


async def _examine(settings: LlmSettings, wanted_context: int | None) -> DoctorReport:
    (url,) = settings.endpoints
    async with open_endpoint_pool(settings) as pool:
        with _progress() as status:
            return await run_checks(
                pool.transport(url),
                settings,
                wanted_context=wanted_context,
                progress=lambda text: status.update(f"looking at {url}: {text}"),
            )


@contextmanager
def _progress() -> Iterator[Any]:
    """Progress on stderr, only if it is a terminal."""
    with console(stderr=True).status("") as status:
        yield status


def _as_data(report: DoctorReport) -> dict[str, Any]:
    return {
        "url": report.url,
        "ok": report.is_reachable,
        "error": report.error or None,
        "fix": report.fix or None,
        "findings": [asdict(finding) for finding in report.findings],
    }


def _print(out: Console, report: DoctorReport) -> None:
    if not report.is_reachable:
        out.print(f"[red]{escape(report.url)}[/]: {escape(report.error)}", soft_wrap=True)
        out.print(f"  [bold]fix:[/] {escape(report.fix)}", soft_wrap=True)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_column(overflow="fold")
    for finding in report.findings:
        table.add_row(finding.check, _status(finding), escape(finding.detail))
    out.print(table)
    for finding in report.findings:
        if finding.advice:
            style = _STYLES[finding.status]
            out.print(f"\n[{style}]{escape(finding.check)}[/]: {escape(finding.advice)}", soft_wrap=True)
    weaker = sum(finding.status == "weaker" for finding in report.findings)
    said = f"{weaker} of {len(report.findings)} checks could be better" if weaker else "nothing to improve"
    out.print(f"\n{escape(report.url)}: {said}", soft_wrap=True)


def _status(finding: CheckResult) -> str:
    return f"[{_STYLES[finding.status]}]{finding.status}[/]"
