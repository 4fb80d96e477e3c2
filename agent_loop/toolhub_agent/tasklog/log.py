"""The log of one task: JSON lines, one per event, each written when it happens.

Writing a record costs the same however long the task has run: nothing is written again. `reader.read_log` builds the
state of a resumed task from it. `miroflow.write_miroflow` builds the document that MiroFlow's tools read. Every record
has `kind` and `at`, seconds since the epoch. The kinds are the methods of `TaskLog` and `ConversationLog`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from toolhub.config.redact import long_enough, redact_json, secret_forms
from toolhub_agent.history import encoded
from toolhub_agent.tasklog.miroflow import write_miroflow
from toolhub_agent.tasklog.reader import LOST, TaskRecord, clock_text, file_stem, full_id, read_log
from toolhub_agent.types import Completion, Json, Message, ToolCall, ToolOutcome, calls_per_turn

# --- The file ---------------------------------------------------------------------------------------------------------
# Appends lines to a file. If the disk fails, the caller goes on.

# The most bytes that wait until a full disk has room again. A long task writes less than this.
BACKLOG_BYTES = 64 * 2**20

logger = logging.getLogger(__name__)


class LineWriter:
    """One file, opened for this process alone. Each line is one `write`, so a killed process loses one line at most.

    Nothing is synced: a line survives the process, but not a power cut. A line that the disk refused is kept and
    written before the next one, so the file never has a gap. When that begins, there is one warning.
    """

    def __init__(self, path: Path | None, descriptor: int | None) -> None:
        """descriptor: None if the file could not be created; then nothing is written."""
        self.path = path
        self._lock = threading.Lock()  # steps of tools may come from other threads
        self._fd: int | None = descriptor
        self._waiting = bytearray()
        self._warned = False

    def __repr__(self) -> str:
        state = "closed" if self._fd is None else f"{len(self._waiting)} bytes waiting"
        return f"<LineWriter {self.path} {state}>"

    def append(self, line: bytes) -> None:
        """Write a line, which ends with a newline and has no other. Never raises OSError."""
        with self._lock:
            if self._fd is None:
                return
            self._waiting += line
            try:
                self._flush(self._fd)
            except OSError as exc:
                self._warn(exc)
                if len(self._waiting) > BACKLOG_BYTES:
                    self._give_up()

    def _flush(self, descriptor: int) -> None:
        while self._waiting:
            count = os.write(descriptor, self._waiting)
            del self._waiting[:count]

    def _give_up(self) -> None:
        logger.warning("log %s: too much is unwritten, so the log ends here; the task goes on", self.path)
        self._waiting.clear()
        self.close()

    def _warn(self, exc: OSError) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("log %s cannot be written (%s): the task goes on, but may not be resumable", self.path, exc)

    def cut(self, size: int) -> None:
        """Remove all after the first `size` bytes: a killed process left an incomplete line. Raises OSError."""
        if self._fd is not None and (rest := os.fstat(self._fd).st_size - size) > 0:
            logger.warning("log %s: removed the last %d bytes, which are not a whole record", self.path, rest)
            os.ftruncate(self._fd, size)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def create_file(folder: Path, stem: str, suffix: str) -> LineWriter:
    """Create a file that only its owner can read. If the name exists, a number is added. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    number = 1
    while True:
        path = folder / (f"{stem}{suffix}" if number == 1 else f"{stem}-{number}{suffix}")
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
        except FileExistsError:
            number += 1
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return LineWriter(path, descriptor)


def reopen_file(path: Path) -> LineWriter:
    """Open an existing file to append. Raises OSError; BlockingIOError while another process writes it."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return LineWriter(path, descriptor)


# --- The log ----------------------------------------------------------------------------------------------------------


VERSION = 1
# How much of an error's text a record contains. The message to the model contains all of it.
_ERROR_CHARS = 300

StepLevel = Literal["info", "warning", "error", "debug"]
TaskStatus = Literal["success", "failed"]


class TaskLog:
    """One task's log. Made by `create` or `resume`. After that no method raises because of the disk.

    log = TaskLog.create(Path("logs"), "t1", description=question)
    try:
        await agent.run(Task("t1", question), log=log)
    finally:
        log.close()

    log, record = TaskLog.resume(path)  # after a crash
    await agent.run(Task("t1", question), log=log, resume_from=record)
    """

    def __init__(
        self, writer: LineWriter, *, secrets: Iterable[str] = (), clock: Callable[[], float] = time.time
    ) -> None:
        """secrets: never written, in whatever text they occur. clock: seconds since the epoch."""
        self._writer = writer
        self._forms = secret_forms(long_enough(secrets))
        self._clock = clock
        self._sub_agents = 0

    def __repr__(self) -> str:
        return f"<TaskLog {self._writer!r}>"

    @classmethod
    def create(
        cls,
        folder: Path,
        task_id: str,
        *,
        description: str,
        file_name: str | None = None,
        ground_truth: str = "",
        attempt: int | None = None,
        fingerprint: str = "",
        env_info: Mapping[str, Any] | None = None,
        secrets: Iterable[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> TaskLog:
        """Create `task_<id>_<start>.jsonl` in a folder, readable for its owner alone.

        attempt: makes the id `<id>_attempt-<n>_format-retry-0`, by which MiroFlow's runner resumes.
        fingerprint: of the config, so that a task is not resumed under another. If the file cannot be created, a
        warning is logged and the log keeps nothing.
        """
        now = clock()
        full = full_id(task_id, attempt)
        stem = file_stem(full, clock_text(now))
        try:
            writer = create_file(folder, stem, ".jsonl")
        except OSError as exc:
            writer = LineWriter(folder / f"{stem}.jsonl", None)
            logger.warning("cannot create the log %s (%s): the task goes on, but cannot be resumed", writer.path, exc)
        log = cls(writer, secrets=secrets, clock=lambda: now)
        log._record(
            "task",
            version=VERSION,
            task_id=full,
            description=description,
            file_name=file_name,
            ground_truth=ground_truth,
            fingerprint=fingerprint,
            env_info=dict(env_info or {}),
            log_dir=str(folder),
        )
        log._clock = clock
        return log

    @classmethod
    def unwritten(cls) -> TaskLog:
        """A log that keeps nothing."""
        return cls(LineWriter(None, None))

    @classmethod
    def resume(
        cls, path: Path, *, secrets: Iterable[str] = (), clock: Callable[[], float] = time.time
    ) -> tuple[TaskLog, TaskRecord]:
        """Open a log to continue it; return it with its content.

        Raises OSError if it cannot be opened (BlockingIOError: another process writes it). Raises LogUnreadable if it
        is not a log.
        """
        writer = reopen_file(path)
        try:
            record = read_log(path)
            writer.cut(record.size)
        except BaseException:
            writer.close()
            raise
        log = cls(writer, secrets=secrets, clock=clock)
        log._sub_agents = record.sub_agent_counter
        log._record("resumed")
        return log, record

    @property
    def path(self) -> Path | None:
        """The file; None for a log that keeps nothing."""
        return self._writer.path

    def conversation(self, session: str, system: str) -> ConversationLog:
        """Begin a conversation. One of the same name begins again: a fresh attempt."""
        self._record("conversation", session=session, system=system)
        return ConversationLog(self, session)

    def continued(self, session: str) -> ConversationLog:
        """Continue a conversation of a resumed log."""
        return ConversationLog(self, session)

    def sub_agent_started(self, name: str, subtask: str) -> str:
        """Returns the session's name, `<name>_<n>`. name: with `agent-` in front, as the model calls it."""
        self._sub_agents += 1
        session = f"{name}_{self._sub_agents}"
        self._record("sub_agent_started", session=session, name=name, subtask=subtask)
        return session

    def sub_agent_ended(self, session: str, name: str) -> None:
        self._record("sub_agent_ended", session=session, name=name)

    def log_step(
        self, info_level: StepLevel, step_name: str, message: str, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """A step of MiroFlow's log; a `ToolManager` takes this log for its own (`set_task_log`).

        Answers, calls, rollbacks, sub-agents and the result are recorded by their own methods, and made into steps when
        MiroFlow's document is written.
        """
        self._record("step", level=info_level, name=step_name, message=message, metadata=dict(metadata or {}))

    def attempt_ended(self, number: int, reason: str) -> None:
        """Record that an attempt failed and another follows."""
        self._record("attempt_ended", number=number, reason=reason)

    def finished(
        self,
        status: TaskStatus,
        answer: str,
        *,
        summary: str = "",
        error: str = "",
        turns: int = 0,
        tool_calls: int = 0,
    ) -> None:
        """Record the result. answer: the boxed one. summary: the text that contains it. turns: of the main agent."""
        self._record(
            "result",
            status=status,
            answer=answer,
            summary=summary,
            error=error,
            turns=turns,
            tool_calls=tool_calls,
            calls_per_turn=calls_per_turn(tool_calls, turns),
        )

    def judged(self, result: str, *, judge_type: str = "", details: Mapping[str, Any] | None = None) -> None:
        self._record("judged", result=result, judge_type=judge_type, details=None if details is None else dict(details))

    def write_miroflow(self) -> Path | None:
        """Write MiroFlow's JSON beside the log, completely or not at all. Return its path, None (warned) on failure.

        It reads the whole log. Call it at the end, or in a worker thread if the task still runs.
        """
        if self.path is None:
            return None
        path = self.path.with_suffix(".json")
        try:
            write_miroflow(read_log(self.path), path)
        except (OSError, ValueError) as exc:
            logger.warning("task log %s cannot be written: %s", path, exc)
            return None
        return path

    def close(self) -> None:
        self._writer.close()

    def _record(self, kind: str, **fields: Any) -> None:
        at = round(self._clock(), 3)
        try:
            line = encoded(redact_json({"kind": kind, "at": at, **fields}, self._forms))
        except (TypeError, ValueError, RecursionError) as exc:
            logger.warning("log %s: left out a record %r, which JSON cannot hold: %s", self.path, kind, exc)
            if kind == "step":
                return  # nothing is resumed from it
            line = encoded({"kind": LOST, "at": at, "lost": kind})
        self._writer.append(line + b"\n")


class ConversationLog:
    """One conversation's records. It observes the conversation's `History`."""

    def __init__(self, log: TaskLog, session: str) -> None:
        self._log = log
        self.session = session

    def appended(self, messages: Sequence[Message]) -> None:
        """Write one record: a native turn without all of its results would not be a valid history."""
        self._log._record("messages", session=self.session, messages=list(messages))

    def popped(self, count: int) -> None:
        self._log._record("popped", session=self.session, count=count)

    def answered(self, turn: int, completion: Completion) -> None:
        """Record the cost of an answer. The answer itself is a message."""
        usage = completion.usage
        self._log._record(
            "usage",
            session=self.session,
            turn=turn,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            finish_reason=completion.finish_reason,
            ttft=round(completion.ttft, 4),
            seconds=round(completion.seconds, 4),
            waited=round(completion.waited, 4),
            endpoint=completion.endpoint,
            attempts=completion.attempts,
        )

    def call_started(self, turn: int, call: ToolCall, *, early: bool = False) -> None:
        self._log._record("call_started", session=self.session, turn=turn, early=early, **_call_fields(call))

    def call_finished(self, turn: int, outcome: ToolOutcome) -> None:
        """Record a call without its result's text, because that is in a message."""
        self._log._record(
            "call_finished",
            session=self.session,
            turn=turn,
            index=outcome.call.index,
            server=outcome.call.server,
            tool=outcome.call.tool,
            seconds=round(outcome.seconds, 4),
            chars=len(outcome.text),
            error=outcome.text[:_ERROR_CHARS] if outcome.is_error else None,
        )

    def turn_dropped(self, turn: int, reason: str, cancelled: Sequence[ToolCall]) -> None:
        """Record that nothing of a turn stays: it was rolled back, or its request failed.

        cancelled: its calls that had started and were not finished.
        """
        calls = [{"index": call.index, "server": call.server, "tool": call.tool} for call in cancelled]
        self._log._record(
            "turn_dropped", session=self.session, turn=turn, reason=reason[:_ERROR_CHARS], cancelled=calls
        )


def _call_fields(call: ToolCall) -> Json:
    return {
        "index": call.index,
        "server": call.server,
        "tool": call.tool,
        "arguments": call.arguments,
        "id": call.id,
        "problem": call.problem,
    }
