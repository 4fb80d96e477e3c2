"""Many tasks, several at once, each with tools of its own; a sweep that was interrupted goes on where it stopped.

A task that had finished is not run again. One that was under way goes on from its log, after its last whole turn, if
the agent's settings are still the same.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from toolhub.errors import ToolhubError
from toolhub_agent.agent import NO_ANSWER, Agent
from toolhub_agent.llm.client import group_by_prefix
from toolhub_agent.run.results import Results, Row, row_of
from toolhub_agent.run.session import Session
from toolhub_agent.tasklog import LogUnreadable, TaskLog, TaskRecord, read_log
from toolhub_agent.tools import HubTools
from toolhub_agent.types import Task, TaskResult

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """What to run. runs: how often each task; concurrency: tasks at once."""

    tasks: tuple[Task, ...]
    folder: Path
    runs: int = 1
    concurrency: int = 1

    def pairs(self) -> list[tuple[int, Task]]:
        """(run, task). Runs of one question follow each other: what is common to their prompts is computed once."""
        pairs = [(run, replace(task, attempt=run)) for run in range(1, self.runs + 1) for task in self.tasks]
        return group_by_prefix(pairs, lambda pair: pair[1].question)

    def folder_of(self, run: int) -> Path:
        return self.folder / f"run_{run}"


OnDone = Callable[[Row], None]


class Sweep:
    """Runs a plan. started, resumed: counts so far."""

    def __init__(self, session: Session, plan: Plan, results: Results) -> None:
        self.started = 0
        self.resumed = 0
        self._session = session
        self._plan = plan
        self._results = results
        self._places = anyio.Semaphore(plan.concurrency)

    def left(self) -> list[tuple[int, Task]]:
        """What has not finished yet."""
        done = self._results.done()
        return [(run, task) for run, task in self._plan.pairs() if (run, task.id) not in done]

    async def run(self, on_done: OnDone) -> None:
        """Run what is left; a task that fails is a row like the others, and the rest goes on."""
        left = self.left()
        if len(left) > 1:
            await self._warm()
        async with anyio.create_task_group() as tasks:
            for run, task in left:
                # The place is taken here: a thousand waiting tasks would be a thousand coroutines.
                await self._places.acquire()
                tasks.start_soon(self._run_one, run, task, on_done)

    async def _warm(self) -> None:
        try:
            await self._session.warm()
        except ToolhubError as exc:
            logger.warning("the tasks' common prefix was not computed beforehand: %s", exc)

    async def _run_one(self, run: int, task: Task, on_done: OnDone) -> None:
        self.started += 1
        try:
            row = row_of(run, await self._result(run, task))
            self._results.add(row)
            on_done(row)
        finally:
            self._places.release()

    async def _result(self, run: int, task: Task) -> TaskResult:
        log, replay = self._log(run, task)
        try:
            async with self._session.open_task(hub_task_id(task.id, run), f"run_{run}") as tools:
                timeout = self._session.settings.tool_timeout_s
                agent = Agent(self._session.surroundings(), HubTools(tools, timeout=timeout))
                return await agent.run(task, log=log, replay=replay)
        except Exception as exc:  # one task's trouble must not end a sweep of hours
            logger.exception("task %s of run %d failed", task.id, run)
            return failed(task, str(exc) or repr(exc), log.path)
        finally:
            log.close()

    def _log(self, run: int, task: Task) -> tuple[TaskLog, TaskRecord | None]:
        """The log of a task that was under way, with what it says; else a new one."""
        folder, fingerprint = self._plan.folder_of(run), self._session.fingerprint()
        path = unfinished_log(folder, task.id, fingerprint)
        if path is not None:
            try:
                log, replay = TaskLog.resume(path, secrets=self._session.secrets)
                self.resumed += 1
                return log, replay
            except (OSError, LogUnreadable) as exc:
                logger.warning("%s cannot be gone on with (%s); the task is begun anew", path, exc)
        return new_log(self._session, folder, task), None


def hub_task_id(task_id: str, run: int) -> str:
    """The hub's id for one run of a task. A data set's id may have any characters; the hub's may not."""
    plain = f"{task_id}-run{run}"
    if is_task_value(plain):
        return plain
    digest = hashlib.blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"task-{digest}-run{run}"


def new_log(session: Session, folder: Path, task: Task) -> TaskLog:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return TaskLog.create(
        folder,
        task.id,
        description=task.question,
        file_name=", ".join(task.files) or None,
        ground_truth=task.ground_truth or "",
        attempt=task.attempt,
        fingerprint=session.fingerprint(),
        secrets=session.secrets,
    )


def unfinished_log(folder: Path, task_id: str, fingerprint: str) -> Path | None:
    """The newest log of a task that has no result in it and was made with the same settings."""
    newest, at = None, -math.inf
    for path in folder.glob("task_*.jsonl"):
        try:
            replay = read_log(path)
        except (OSError, LogUnreadable):
            continue
        begun = float(replay.task.get("at", 0))
        if _is_of(replay, task_id) and replay.result is None and replay.fingerprint == fingerprint and begun > at:
            newest, at = path, begun
    return newest


def _is_of(replay: TaskRecord, task_id: str) -> bool:
    return replay.task_id == task_id or replay.task_id.startswith(f"{task_id}_attempt-")


def failed(task: Task, error: str, log: Path | None = None) -> TaskResult:
    """For a task that could not even be tried to its end."""
    return TaskResult(task, "failed", NO_ANSWER, "", "llm_failed", turns=0, tool_calls=0, log=log, error=error)
