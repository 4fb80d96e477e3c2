"""Runs many tasks, several at once, each with its own tools. An interrupted sweep continues where it stopped.

A finished task is not run again. A task that was running continues from its log, after its last complete turn, if the
agent's settings are unchanged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import anyio

from toolhub.errors import ConfigError, ToolhubError
from toolhub.task_ids import is_task_value
from toolhub_agent.agent import NO_ANSWER
from toolhub_agent.llm.client import group_by_prefix
from toolhub_agent.session import RunSession
from toolhub_agent.tasklog import LogUnreadable, TaskLog, TaskRecord, logs_of_task, read_log
from toolhub_agent.types import Json, Task, TaskResult

# --- The tasks --------------------------------------------------------------------------------------------------------
# The tasks of a sweep, read from JSON lines with the field names of benchmark files.

_ID_KEYS = ("id", "task_id")
_QUESTION_KEYS = ("question", "task_question", "task_description", "task")
_ANSWER_KEYS = ("ground_truth", "answer", "final_answer")
_FILE_KEYS = ("files", "file_path", "file_name")


def read_tasks(path: Path) -> list[Task]:
    """One task per line. Raises ConfigError with the line's number.

    ``{"id": ..., "question": ..., "ground_truth"?: ..., "files"?: [...]}``. MiroFlow's `task_id`, `task_question` and
    `file_path` are accepted too. A task without an id gets its line's number.
    """
    tasks: dict[str, Task] = {}
    for number, line in enumerate(_task_lines(path), start=1):
        if not line.strip():
            continue
        task = _parse_task(line, number, path)
        if task.id in tasks:
            raise ConfigError(f"the id {task.id!r} is there twice", path=str(path), line=number)
        tasks[task.id] = task
    if not tasks:
        raise ConfigError("there is no task in it", path=str(path))
    return list(tasks.values())


def _task_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise ConfigError("no such file", path=str(path)) from None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot be read: {exc}", path=str(path)) from exc


def _parse_task(line: str, number: int, path: Path) -> Task:
    try:
        fields = json.loads(line)
    except ValueError as exc:
        raise ConfigError(f"not valid JSON: {exc}", path=str(path), line=number) from None
    if not isinstance(fields, dict):
        raise ConfigError("expected an object with a question", path=str(path), line=number)
    question = _first_of(fields, _QUESTION_KEYS)
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(f"expected a text under one of {', '.join(_QUESTION_KEYS)}", path=str(path), line=number)
    truth = _first_of(fields, _ANSWER_KEYS)
    return Task(
        str(_first_of(fields, _ID_KEYS) or number),
        question,
        files=_files(_first_of(fields, _FILE_KEYS)),
        ground_truth=None if truth is None else str(truth),
    )


def _first_of(fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _files(named: Any) -> tuple[str, ...]:
    if not named:
        return ()
    return tuple(str(path) for path in named) if isinstance(named, list) else (str(named),)


# --- The results ------------------------------------------------------------------------------------------------------
# A line of JSON per finished task. An interrupted sweep reads it to continue.

RESULTS_FILE = "results.jsonl"


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One finished task of one run. Times are seconds.

    exact: the answer equals the known one except for case, blanks and a last full stop; None: no answer is known.
    """

    run: int
    id: str
    status: str
    answer: str
    exact: bool | None
    stopped: str
    turns: int
    tool_calls: int
    rollbacks: int
    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    seconds: float
    log: str | None
    error: str | None


def row_of(run: int, result: TaskResult) -> ResultRow:
    truth = result.task.ground_truth
    return ResultRow(
        run=run,
        id=result.task.id,
        status=result.status,
        answer=result.answer,
        exact=None if truth is None else _normalized(truth) == _normalized(result.answer),
        stopped=result.stopped,
        turns=result.turns,
        tool_calls=result.tool_calls,
        rollbacks=result.rollbacks,
        prompt_tokens=result.usage.prompt_tokens,
        cached_tokens=result.usage.cached_tokens,
        completion_tokens=result.usage.completion_tokens,
        seconds=round(result.seconds, 3),
        log=None if result.log is None else result.log.name,
        error=result.error,
    )


def _normalized(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().rstrip(".").lower()


class ResultFile:
    """The file of a sweep's results, and the rows that it held when it was opened."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError if the folder is not writable."""
        self.path = folder / RESULTS_FILE
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self.rows = list(_read_rows(self.path))
            if self.path.read_bytes()[-1:] not in (b"", b"\n"):
                os.write(self._file, b"\n")  # a killed process left an incomplete line
        except OSError as exc:
            raise ConfigError(f"results cannot be kept in {folder}: {exc.strerror or exc}; choose --out") from exc

    def done(self) -> set[tuple[int, str]]:
        """(run, id) of every task that need not run again. Tasks that could not reach the model are not among them."""
        return {(row.run, row.id) for row in self.rows if row.stopped != "llm_failed"}

    def add(self, row: ResultRow) -> None:
        """Append a row in one write, so that other processes never see half a line between theirs."""
        self.rows.append(row)
        os.write(self._file, json.dumps(asdict(row), ensure_ascii=False).encode() + b"\n")

    def final(self) -> list[ResultRow]:
        """The last row of each task and run."""
        return list({(row.run, row.id): row for row in self.rows}.values())

    def close(self) -> None:
        os.close(self._file)


def _read_rows(path: Path) -> Iterable[ResultRow]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield ResultRow(**json.loads(line))
        except (ValueError, TypeError):
            continue  # an incomplete line of a killed process; its task runs again


def summary(rows: Iterable[ResultRow]) -> Json:
    """The result of a sweep: counts, tokens, and the share of exact answers where the answer is known."""
    rows = list(rows)
    known = [row for row in rows if row.exact is not None]
    cached = [row.cached_tokens for row in rows if row.cached_tokens is not None]
    prompt = sum(row.prompt_tokens for row in rows)
    return {
        "tasks": len(rows),
        "success": sum(row.status == "success" for row in rows),
        "failed": sum(row.status != "success" for row in rows),
        "exact": sum(bool(row.exact) for row in known) if known else None,
        "with_ground_truth": len(known),
        "turns": sum(row.turns for row in rows),
        "tool_calls": sum(row.tool_calls for row in rows),
        "rollbacks": sum(row.rollbacks for row in rows),
        "prompt_tokens": prompt,
        "cached_share": round(sum(cached) / prompt, 4) if cached and prompt else None,
        "completion_tokens": sum(row.completion_tokens for row in rows),
        "seconds_median": round(sorted(row.seconds for row in rows)[len(rows) // 2], 1) if rows else None,
    }


# --- The sweep --------------------------------------------------------------------------------------------------------
# Runs many tasks, several at once, and continues an interrupted sweep.

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SweepPlan:
    """What to run. runs: how often each task runs. concurrency: tasks at once."""

    tasks: tuple[Task, ...]
    folder: Path
    runs: int = 1
    concurrency: int = 1

    def pairs(self) -> list[tuple[int, Task]]:
        """(run, task). Runs of one question follow each other, so that their common prefix is computed once."""
        pairs = [(run, replace(task, attempt=run)) for run in range(1, self.runs + 1) for task in self.tasks]
        return group_by_prefix(pairs, lambda pair: pair[1].question)

    def folder_of(self, run: int) -> Path:
        return self.folder / f"run_{run}"


OnDone = Callable[[ResultRow], None]


class Sweep:
    """Runs a plan. started, resumed: how many tasks so far."""

    def __init__(self, session: RunSession, plan: SweepPlan, results: ResultFile) -> None:
        self.started = 0
        self.resumed = 0
        self._session = session
        self._plan = plan
        self._results = results
        self._places = anyio.Semaphore(plan.concurrency)

    def left(self) -> list[tuple[int, Task]]:
        """The tasks that have not finished yet."""
        done = self._results.done()
        return [(run, task) for run, task in self._plan.pairs() if (run, task.id) not in done]

    async def run(self, on_done: OnDone) -> None:
        """Run what is left. A failed task gets a row too, and the others go on."""
        left = self.left()
        if len(left) > 1:
            await self._prefetch_shared_prefix()
        async with anyio.create_task_group() as tasks:
            for run, task in left:
                # Acquire before starting the task: otherwise a thousand waiting tasks would be a thousand coroutines.
                await self._places.acquire()
                tasks.start_soon(self._run_one, run, task, on_done)

    async def _prefetch_shared_prefix(self) -> None:
        try:
            await self._session.prefetch_shared_prefix()
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
                return await self._session.agent(tools).run(task, log=log, resume_from=replay)
        except Exception as exc:  # one failed task must not end a sweep of hours
            logger.exception("task %s of run %d failed", task.id, run)
            return failed_result(task, str(exc) or repr(exc), log.path)
        finally:
            log.close()

    def _log(self, run: int, task: Task) -> tuple[TaskLog, TaskRecord | None]:
        """The log of a task that was running, with its content; else a new log."""
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
    """The hub's id for one run of a task. A data set's id may have any characters; the hub's ids may not."""
    plain = f"{task_id}-run{run}"
    if is_task_value(plain):
        return plain
    digest = hashlib.blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"task-{digest}-run{run}"


def new_log(session: RunSession, folder: Path, task: Task) -> TaskLog:
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
    """The newest log of a task that holds no result and was written with the same settings."""
    newest, at = None, -math.inf
    for path in logs_of_task(folder, task_id):
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


def failed_result(task: Task, error: str, log: Path | None = None) -> TaskResult:
    """The result of a task that could not be run to its end."""
    return TaskResult(task, "failed", NO_ANSWER, "", "llm_failed", turns=0, tool_calls=0, log=log, error=error)
