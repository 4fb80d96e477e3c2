"""The work of `toolhub demo --replay`."""

from __future__ import annotations

import functools
import importlib.util
import sys
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from toolhub import Config
from toolhub.cli.shared import console, log_to_stderr, print_json, read_config, scratch_folder
from toolhub.cli.shared import run as run_async
from toolhub.errors import ConfigError, MissingExtra
from toolhub_agent.replay import player
from toolhub_agent.replay.player import NOTICE, ReplayView, banner, play
from toolhub_agent.replay.recording import ReplayLlm, Trajectory
from toolhub_agent.sweep import row_of
from toolhub_agent.tasklog import LogUnreadable, TaskLog
from toolhub_agent.types import TaskResult
from toolhub_agent.view import result_panel


def replay(as_json: bool, log: Path | None, config: Path | None) -> None:
    """Play a log and print what came of it; exit 1 if the task ends without an answer. See `toolhub_agent.replay`."""
    trajectory = _trajectory(log or player.DEMO_LOG)
    log_to_stderr("error")
    out = console(stderr=as_json)
    llm = ReplayLlm(trajectory)
    view = ReplayView(out)
    with scratch_folder("replay") as folder:
        chosen = _config(log, config, folder)
        out.print(banner(trajectory))
        result = run_async(functools.partial(_play, trajectory, llm, chosen, view, folder))
    if as_json:
        about = {"replay": NOTICE, "note": trajectory.note, "recorded_turns": trajectory.turns, "calls": view.calls}
        print_json({**about, "result": asdict(row_of(1, result))})
    else:
        _print_result(out, trajectory, result)
    if result.status != "success":
        sys.exit(1)


def _trajectory(path: Path) -> Trajectory:
    try:
        trajectory = Trajectory.read(path)
    except (OSError, LogUnreadable) as exc:
        raise ConfigError(f"cannot be replayed: {exc}; give a task_*.jsonl that `toolhub run` wrote") from exc
    if not trajectory.turns:
        raise ConfigError("cannot be replayed: it contains no answer of a model", path=str(path))
    return trajectory


def _config(log: Path | None, config: Path | None, workdir: Path) -> Config:
    """The config for the tools: the user's for the user's own log, the demo's for the log that ships."""
    if log is not None:
        return read_config(config)
    if importlib.util.find_spec("markdown_it") is None:
        raise MissingExtra("hub,servers,agent", "demo --replay")
    return player.demo_config(workdir)


async def _play(trajectory: Trajectory, llm: ReplayLlm, config: Config, view: ReplayView, workdir: Path) -> TaskResult:
    log = TaskLog.create(workdir, "replay", description=trajectory.question)
    try:
        with view:
            result = await play(trajectory, llm, config, view, log)
    finally:
        log.close()
    return replace(result, log=None)  # it is gone with its folder


def _print_result(out: Console, trajectory: Trajectory, result: TaskResult) -> None:
    table = result_panel(result)
    table.add_row("replay", "answer and tokens are recorded; the tools, their results and the time are of this run")
    out.print()
    out.print(table)
