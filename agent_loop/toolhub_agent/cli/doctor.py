"""`toolhub doctor --llm URL`: what a model server gives an agent, and whether speculative decoding is worth it."""

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
from toolhub_agent.doctor.decoding import Comparison, LevelResult, LoadResult, Verdict, as_data, compare
from toolhub_agent.doctor.probe import RequestFailed, open_model_server
from toolhub_agent.llm.endpoint_pool import open_endpoint_pool
from toolhub_agent.llm.transport import engine_root
from toolhub_agent.sweep import CHECK_CONNECT_S

_STYLES = {"ok": "green", "weaker": "yellow", "note": "cyan"}
_VERDICT_STYLES = {Verdict.USE: "green", Verdict.REFUSED: "red", Verdict.SLOWER: "yellow"}


def run(path: Path | None, url: str, against: str | None, as_json: bool) -> None:
    """Print the report; exit 1 if the server could not be reached. path: a config, for its key and agent.

    against: the same server without speculative decoding; then print a comparison, and exit 1 if it refuses.
    """
    log_to_stderr("error")
    config = _config(path)
    if against is not None:
        _run_comparison(config, url, against, as_json)
        return
    settings = settings_for(config, url)
    wanted = config.agent.max_context_tokens if config is not None else None
    report = run_async(functools.partial(_examine, settings, wanted))
    if as_json:
        print_json(_as_data(report))
    else:
        _print(console(), report)
    if not report.is_reachable:
        sys.exit(1)


def _run_comparison(config: Config | None, url: str, against: str, as_json: bool) -> None:
    recipe, plain = settings_for(config, url), settings_for(config, against)
    if recipe.endpoints == plain.endpoints:
        raise ConfigError("--llm and --against are the same server; start the one without --decode on another port")
    try:
        found = run_async(functools.partial(_compare, recipe, plain))
    except RequestFailed as exc:
        if as_json:
            print_json({"error": str(exc)})
        else:
            console().print(f"[red]nothing was compared[/]: {escape(str(exc))}", soft_wrap=True)
        sys.exit(1)
    if as_json:
        print_json(as_data(found))
    else:
        _print_comparison(console(), found)
    if found.is_refused:
        sys.exit(1)


async def _compare(recipe: LlmSettings, plain: LlmSettings) -> Comparison:
    """Raises RequestFailed, with the server's address."""
    async with open_model_server(recipe) as first, open_model_server(plain) as second:
        if first.model != second.model:
            raise RequestFailed(
                f"the servers have different models, {first.model!r} and {second.model!r}; a comparison needs the same"
            )
        with _progress() as status:
            return await compare(first, second, progress=lambda text: status.update(f"comparing: {text}"))


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


def _print_comparison(out: Console, found: Comparison) -> None:
    out.print(f"[bold]with[/] {escape(found.recipe)}, [bold]without[/] {escape(found.plain)}", soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("at once", "tokens/s with", "without", "gain", "accepted", "valid calls with", "without"):
        table.add_column(name, justify="right")
    table.add_column("verdict", no_wrap=True)
    for level in found.levels:
        table.add_row(*_cells(level))
    out.print(table)
    for sentence in found.conclusion():
        out.print(f"\n{escape(sentence)}", soft_wrap=True)


def _cells(level: LevelResult) -> list[str]:
    style = _VERDICT_STYLES.get(level.verdict, "cyan")
    with_it, without = level.recipe, level.plain
    return [
        str(level.at_once),
        *(f"{load.tokens_per_s:.0f}" for load in (with_it, without)),
        "-" if level.gain is None else f"{level.gain:.2f} x",
        "-" if with_it.acceptance is None else f"{with_it.acceptance:.0%}",
        *(_valid_text(load) for load in (with_it, without)),
        f"[{style}]{level.verdict.value}[/]",
    ]


def _valid_text(load: LoadResult) -> str:
    return f"{load.valid} of {load.requests}"


def _status(finding: CheckResult) -> str:
    return f"[{_STYLES[finding.status]}]{finding.status}[/]"
