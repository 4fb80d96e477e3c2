"""`toolhub run`."""

from __future__ import annotations

import functools
import sys
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from rich.console import Console
from rich.markup import escape

from toolhub import Config, load_config
from toolhub.cli.shared import console, find_config, log_to_stderr, print_json
from toolhub.cli.shared import run as run_async
from toolhub.config import LlmSettings, SharedResultsSettings
from toolhub.errors import ConfigError
from toolhub_agent.sweep import (
    AUTO_CONCURRENCY,
    DEFAULT_CONCURRENCY,
    ResultFile,
    Sweep,
    SweepPlan,
    check_model_servers,
    llm_settings,
    new_log,
    open_session,
    read_tasks,
    row_of,
    summary,
)
from toolhub_agent.types import Task, TaskResult
from toolhub_agent.view import SweepView, TaskView, result_panel, summary_table

if TYPE_CHECKING:  # imported first, it and the model client would import each other
    from toolhub_agent.admission.controller import ProgramAdmission


def run(
    question: str | None,
    *,
    config: Path | None,
    llm: str | None,
    model: str | None,
    tasks: Path | None,
    concurrency: int | None,
    runs: int,
    out: Path,
    hub: str | None,
    token: str | None,
    share_results: bool,
    prefix: bool,
    as_json: bool,
) -> None:
    """Run one task or a sweep; exit 1 if a task has no answer."""
    if (question is None) == (tasks is None):
        raise ConfigError('give one question, as in: toolhub run "Who ...?", or a file of them with --tasks')
    loaded = load_config(find_config(config))
    if share_results:
        loaded = _with_shared_results(loaded, out, hub)
    settings = llm_settings(loaded, llm, model)
    log_to_stderr("error")
    reach = _Reach(loaded, settings, hub, token)
    progress = console(stderr=True)
    at_once = concurrency or (AUTO_CONCURRENCY if settings.admission.enabled else DEFAULT_CONCURRENCY)
    plan = SweepPlan(tuple(read_tasks(tasks)), out, runs, at_once) if tasks is not None else None
    for problem in run_async(functools.partial(check_model_servers, settings)):
        progress.print(f"[yellow]{escape(problem)}[/]", soft_wrap=True)
    if plan is not None:
        is_success = _sweep(reach, plan, progress, as_json)
    else:
        assert question is not None
        is_success = _one(reach, question, out, progress, prefix, as_json)
    if not is_success:
        sys.exit(1)


def _with_shared_results(config: Config, out: Path, hub: str | None) -> Config:
    """Return the config of a hub that shares results between all that runs with the folder `out`."""
    if hub is not None:
        raise ConfigError("--share-results is for the command's own hub; that of --hub has hub.shared_results")
    sharing = config.hub.shared_results or SharedResultsSettings(dir=out)
    return config.model_copy(update={"hub": config.hub.model_copy(update={"shared_results": sharing})})


# How often the progress line says who is paused.
_SHOW_S = 1.0


class _Reach:
    """What a session is opened with."""

    def __init__(self, config: Config, llm: LlmSettings, hub: str | None, token: str | None) -> None:
        self.open = functools.partial(open_session, config, llm, hub=hub, token=token)
        self.endpoints = ", ".join(llm.endpoints)


def _one(reach: _Reach, question: str, out: Path, progress: Console, prefix: bool, as_json: bool) -> bool:
    task = Task(f"task-{uuid.uuid4().hex[:8]}", question)
    result = run_async(functools.partial(_answer, reach, task, out, progress, prefix))
    if as_json:
        print_json(asdict(row_of(1, result)))
    else:
        console().print(result_panel(result))
    return result.status == "success"


async def _answer(reach: _Reach, task: Task, out: Path, progress: Console, prefix: bool) -> TaskResult:
    async with reach.open() as session:
        log = new_log(session, out, task)
        try:
            with TaskView(progress) as view:
                async with session.open_task(task.id, "") as tools:
                    agent = session.agent(tools, view)
                    result = await agent.run(task, log=log)
        finally:
            log.close()
        if prefix:
            progress.print(agent.prefix_report().table())
        return result


def _sweep(reach: _Reach, plan: SweepPlan, progress: Console, as_json: bool) -> bool:
    results = ResultFile(plan.folder)
    try:
        run_async(functools.partial(_run_sweep, reach, plan, results, progress))
    except KeyboardInterrupt:
        progress.print("\nstopped; run the same command again to continue")
        raise
    finally:
        results.close()
    wanted = {(run, task.id) for run, task in plan.pairs()}
    rows = [row for row in results.final() if (row.run, row.id) in wanted]
    totals = summary(rows)
    if as_json:
        print_json({"summary": totals, "results": str(results.path)})
    else:
        out = console()
        out.print(summary_table(totals))
        out.print(f"[bold]results[/]  {results.path}", soft_wrap=True)
    return bool(totals["failed"] == 0)


async def _run_sweep(reach: _Reach, plan: SweepPlan, results: ResultFile, progress: Console) -> None:
    async with reach.open() as session:
        sweep = Sweep(session, plan, results)
        total, left = len(plan.pairs()), len(sweep.left())
        done = total - left
        progress.print(
            f"{total} tasks, at most {plan.concurrency} at once, model at {reach.endpoints}"
            + (f"; {done} of them already finished" if done else ""),
            soft_wrap=True,
        )
        if not left:
            return
        with SweepView(progress, total, done) as view:
            async with anyio.create_task_group() as showing:
                showing.start_soon(_show_pauses, session.llm.pool.admission, view)
                await sweep.run(view.done)
                showing.cancel_scope.cancel()
        if sweep.resumed:
            progress.print(f"{sweep.resumed} tasks continued where they had stopped")


async def _show_pauses(admission: ProgramAdmission, view: SweepView) -> None:
    while admission.is_on:
        view.note_pauses(admission.pauses().values())
        await anyio.sleep(_SHOW_S)
