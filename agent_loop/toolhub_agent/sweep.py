"""Runs many tasks, several at once, each with its own tools. An interrupted sweep continues where it stopped.

A finished task is not run again. A task that was running continues from its log, after its last complete turn, if the
agent's settings are unchanged.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import math
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import anyio

from toolhub import Config, Hub, connect
from toolhub import HubTask as OwnTask
from toolhub.config import AgentSettings, LlmSettings, parse_config
from toolhub.errors import ConfigError, ToolhubError
from toolhub.task_ids import is_task_value
from toolhub_agent.agent import (
    NO_ANSWER,
    Agent,
    catalog_for,
    definitions_for,
    open_model_servers,
    sub_agent_definitions,
    system_prompt_for,
    with_api_version,
)
from toolhub_agent.events import AgentCallbacks, NoCallbacks
from toolhub_agent.kv_hints.hinter import Hinter
from toolhub_agent.llm import LlmClient
from toolhub_agent.llm.client import group_by_prefix
from toolhub_agent.llm.endpoint_pool import EndpointPool, open_endpoint_pool
from toolhub_agent.llm.errors import AttemptFailed
from toolhub_agent.prompts import MAIN_OBJECTIVE
from toolhub_agent.tasklog import LogUnreadable, TaskLog, TaskRecord, logs_of_task, read_log
from toolhub_agent.tools import HubTask, HubTools
from toolhub_agent.types import Delta, Json, Task, TaskResult, calls_per_turn

# --- What all tasks use -----------------------------------------------------------------------------------------------

# For checks before the work. A server that is up connects and lists its models in milliseconds.
CHECK_CONNECT_S = 4.0
_ANSWER_S = 5.0

OpenTask = Callable[[str, str], AbstractAsyncContextManager[HubTask]]
"""Called with the task's id and the run's name. The tools live while the block runs."""


@dataclass(frozen=True)
class RunSession:
    """What all tasks of one command use."""

    llm: LlmClient
    hints: Hinter
    settings: AgentSettings
    open_task: OpenTask
    secrets: frozenset[str]
    """What no log may contain: all secrets of the config, of the model servers and of the hub in use."""
    shares_results: bool = False
    """The hub of this process keeps results of read-only tools for other tasks and attempts."""

    def agent(self, tools: HubTask, callbacks: AgentCallbacks | None = None) -> Agent:
        return Agent(llm=self.llm, tools=tools, settings=self.settings, hints=self.hints, callbacks=callbacks)

    def fingerprint(self) -> str:
        """A hash of the settings that influence a task. A task is not resumed under another fingerprint."""
        return hashlib.blake2b(self.settings.model_dump_json().encode(), digest_size=8).hexdigest()

    async def prefetch_shared_prefix(self) -> bool:
        """Have the common prefix of all tasks computed once. Return whether any endpoint did it."""
        async with self.open_task("prefetch", "") as task:
            definitions = await HubTools(task).get_all_tool_definitions()
        messages, body = shared_prefix(definitions, self.settings, datetime.date.today())
        usages = await self.llm.prefetch_prefix(messages, body)
        return any(usage is not None for usage in usages.values())


def shared_prefix(
    definitions: list[Json], settings: AgentSettings, today: datetime.date
) -> tuple[list[Json], Mapping[str, Any]]:
    """The messages and body fields that every main agent's first request begins with."""
    own = definitions_for(definitions, settings.servers)
    catalog = catalog_for([*own, *sub_agent_definitions(settings.sub_agents)], settings)
    system = system_prompt_for(catalog, settings, settings.system_prompt or MAIN_OBJECTIVE, today)
    body = {"tools": catalog.native_tools(), "tool_choice": "auto"} if settings.protocol == "native" else {}
    return [{"role": "system", "content": system}], body


@asynccontextmanager
async def open_session(
    config: Config, llm: LlmSettings, *, hub: str | None = None, token: str | None = None
) -> AsyncIterator[RunSession]:
    """Open everything. Nothing is sent to a model server yet. hub: the address of a running one; None starts one."""
    async with AsyncExitStack() as stack:
        client, hints = await stack.enter_async_context(open_model_servers(llm))
        if hub is not None:
            open_task = _task_opener(await stack.enter_async_context(connect(hub, token=token)))
        else:
            local = await stack.enter_async_context(Hub(config))
            local.observers.append(hints.durations)
            open_task = _task_opener(local)
        secrets = config.secrets.union(llm.secrets, [token] if token else [])
        shares_results = hub is None and config.hub.shared_results is not None
        yield RunSession(client, hints, config.agent, open_task, secrets, shares_results)


async def check_model_servers(llm: LlmSettings) -> list[str]:
    """Return a sentence for each endpoint that does not answer; it takes at most 5 s.

    Raises ConfigError if a connection to all of them fails. One that connects and is silent may only be busy.
    """
    dead: dict[str, str] = {}
    silent: list[str] = []
    bounded = llm.model_copy(update={"connect_timeout_s": min(llm.connect_timeout_s, CHECK_CONNECT_S)})

    async def ask(pool: EndpointPool, url: str) -> None:
        with anyio.move_on_after(_ANSWER_S) as scope:
            try:
                await pool.transport(url).models()
            except AttemptFailed as exc:
                if exc.status is None and exc.is_endpoint_fault:
                    dead[url] = str(exc)
        if scope.cancelled_caught:
            silent.append(f"the model server at {url} did not answer within {_ANSWER_S:g} s; it may be busy")

    async with open_endpoint_pool(bounded) as pool, anyio.create_task_group() as asking:
        for url in llm.endpoints:
            asking.start_soon(ask, pool, url)
    found = [f"no model server answers at {url} ({reason})" for url, reason in dead.items()]
    if len(dead) == len(set(llm.endpoints)):
        raise ConfigError(
            f"{'; '.join(found)}; start it (`toolhub llm-command` prints how), or correct --llm or `llm: endpoints:`"
        )
    return found + silent


def _task_opener(hub: Any) -> OpenTask:
    """hub: a `Hub` of this process, or one that `connect()` reached."""
    return lambda task_id, run: hub.task(task_id, run=run)


def llm_settings(config: Config, url: str | None, model: str | None) -> LlmSettings:
    """The config's settings with the command's address and model. Raises ConfigError if no model server is named."""
    if url is None and config.llm is None:
        raise ConfigError(
            "no model server: name one with --llm http://host:8000/v1, or in the config under `llm: endpoints:`. "
            "Without one at hand, `toolhub demo --replay` shows what a task looks like"
        )
    section: dict[str, Any] = {} if config.llm is None else config.llm.model_dump(exclude_unset=True)
    if config.llm is not None and config.llm.api_key is not None:
        section["api_key"] = config.llm.api_key.get_secret_value()
    if url is not None:
        section["endpoints"] = [with_api_version(url)]
    if model is not None:
        section["model"] = model
    settings = parse_config({"llm": section}, path="--llm", environ={}).llm
    assert settings is not None
    return settings


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
            raise ConfigError(f"the id {task.id!r} occurs twice", path=str(path), line=number)
        tasks[task.id] = task
    if not tasks:
        raise ConfigError("the file has no task", path=str(path))
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
    shared_results: int | None = None
    """Calls that got the result of another task or attempt; None: results were not shared."""


def row_of(run: int, result: TaskResult, shared_results: int | None = None) -> ResultRow:
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
        shared_results=shared_results,
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
            raise ConfigError(
                f"cannot write results to {folder}: {exc.strerror or exc}; choose another folder with --out"
            ) from exc

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
    shared = [row.shared_results for row in rows if row.shared_results is not None]
    return {
        "tasks": len(rows),
        "success": sum(row.status == "success" for row in rows),
        "failed": sum(row.status != "success" for row in rows),
        "exact": sum(bool(row.exact) for row in known) if known else None,
        "with_ground_truth": len(known),
        "turns": sum(row.turns for row in rows),
        "tool_calls": sum(row.tool_calls for row in rows),
        "calls_per_turn": calls_per_turn(sum(row.tool_calls for row in rows), sum(row.turns for row in rows)),
        "shared_results": sum(shared) if shared else None,
        "rollbacks": sum(row.rollbacks for row in rows),
        "prompt_tokens": prompt,
        "cached_share": round(sum(cached) / prompt, 4) if cached and prompt else None,
        "completion_tokens": sum(row.completion_tokens for row in rows),
        "seconds_median": round(sorted(row.seconds for row in rows)[len(rows) // 2], 1) if rows else None,
    }


# --- The sweep --------------------------------------------------------------------------------------------------------
# Runs many tasks, several at once, and continues an interrupted sweep.

logger = logging.getLogger(__name__)

# Tasks at once, if the command names no number: without admission, and with it, which then decides.
DEFAULT_CONCURRENCY, AUTO_CONCURRENCY = 8, 256
# Tasks that wait for their first answer. While so many do, no other one is begun: it would only hold tools.
MAX_UNANSWERED = 8


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


class FirstAnswer(NoCallbacks):
    """Calls `came` once: when the model has written the first piece for a task, or when the task has ended."""

    def __init__(self, came: Callable[[], None]) -> None:
        self._came: Callable[[], None] | None = came

    def wrote(self, agent: str, delta: Delta) -> None:
        self.note()

    def note(self) -> None:
        came, self._came = self._came, None
        if came is not None:
            came()


class Sweep:
    """Runs a plan. started, resumed: how many tasks so far."""

    def __init__(self, session: RunSession, plan: SweepPlan, results: ResultFile) -> None:
        self.started = 0
        self.resumed = 0
        self._session = session
        self._plan = plan
        self._results = results
        self._places = anyio.Semaphore(plan.concurrency)
        is_admitted = session.llm.pool.admission.is_on
        self._unanswered = anyio.Semaphore(MAX_UNANSWERED if is_admitted else plan.concurrency)

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
                await self._unanswered.acquire()
                tasks.start_soon(self._run_one, run, task, on_done)

    async def _prefetch_shared_prefix(self) -> None:
        try:
            await self._session.prefetch_shared_prefix()
        except ToolhubError as exc:
            logger.warning("the common prefix of the tasks was not prefetched: %s", exc)

    async def _run_one(self, run: int, task: Task, on_done: OnDone) -> None:
        self.started += 1
        first = FirstAnswer(self._unanswered.release)
        try:
            row = row_of(run, *await self._result(run, task, first))
            self._results.add(row)
            on_done(row)
        finally:
            first.note()
            self._places.release()

    async def _result(self, run: int, task: Task, first: FirstAnswer) -> tuple[TaskResult, int | None]:
        """Run a task. Return also how many of its calls got a shared result, if results are shared."""
        log, record = self._log(run, task)
        try:
            async with self._session.open_task(hub_task_id(task.id, run), f"run_{run}") as tools:
                result = await self._session.agent(tools, first).run(task, log=log, resume_from=record)
                if isinstance(tools, OwnTask) and self._session.shares_results:
                    return result, tools.statistics().shared_results
                return result, None
        except Exception as exc:  # one failed task must not end a sweep of hours
            logger.exception("task %s of run %d failed", task.id, run)
            return failed_result(task, str(exc) or repr(exc), log.path), None
        finally:
            log.close()

    def _log(self, run: int, task: Task) -> tuple[TaskLog, TaskRecord | None]:
        """The log of a task that was running, with its content; else a new log."""
        folder, fingerprint = self._plan.folder_of(run), self._session.fingerprint()
        path = unfinished_log(folder, task.id, fingerprint)
        if path is not None:
            try:
                log, record = TaskLog.resume(path, secrets=self._session.secrets)
                self.resumed += 1
                return log, record
            except (OSError, LogUnreadable) as exc:
                logger.warning("%s cannot be continued (%s); the task starts again", path, exc)
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
            record = read_log(path)
        except (OSError, LogUnreadable):
            continue
        begun = float(record.task.get("at", 0))
        if _is_of(record, task_id) and record.result is None and record.fingerprint == fingerprint and begun > at:
            newest, at = path, begun
    return newest


def _is_of(record: TaskRecord, task_id: str) -> bool:
    return record.task_id == task_id or record.task_id.startswith(f"{task_id}_attempt-")


def failed_result(task: Task, error: str, log: Path | None = None) -> TaskResult:
    """The result of a task that could not be run to its end."""
    return TaskResult(task, "failed", NO_ANSWER, "", "llm_failed", turns=0, tool_calls=0, log=log, error=error)
