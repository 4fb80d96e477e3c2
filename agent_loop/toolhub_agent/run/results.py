"""The results of a sweep: a line of JSON per finished task, by which an interrupted sweep goes on."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from toolhub.errors import ConfigError
from toolhub_agent.types import Json, TaskResult

FILE = "results.jsonl"


@dataclass(frozen=True, slots=True)
class Row:
    """One finished task of one run. exact: the answer equals the known one but for case, blanks and a last full stop;
    None: it is not known. Times are seconds."""

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


def row_of(run: int, result: TaskResult) -> Row:
    truth = result.task.ground_truth
    return Row(
        run=run,
        id=result.task.id,
        status=result.status,
        answer=result.answer,
        exact=None if truth is None else _plain(truth) == _plain(result.answer),
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


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().rstrip(".").lower()


class Results:
    """The file of a sweep's results, and what was in it."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError if the folder cannot be written."""
        self.path = folder / FILE
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self.rows = list(_read(self.path))
            if self.path.read_bytes()[-1:] not in (b"", b"\n"):
                os.write(self._file, b"\n")  # a process was killed in the middle of a line
        except OSError as exc:
            raise ConfigError(f"results cannot be kept in {folder}: {exc.strerror or exc}; choose --out") from exc

    def done(self) -> set[tuple[int, str]]:
        """(run, id) of every task that need not run again: those the model could not be asked about are not done."""
        return {(row.run, row.id) for row in self.rows if row.stopped != "llm_failed"}

    def add(self, row: Row) -> None:
        """In one write, so that no line is ever half there beside another."""
        self.rows.append(row)
        os.write(self._file, json.dumps(asdict(row), ensure_ascii=False).encode() + b"\n")

    def final(self) -> list[Row]:
        """One row per task and run: the last."""
        return list({(row.run, row.id): row for row in self.rows}.values())

    def close(self) -> None:
        os.close(self._file)


def _read(path: Path) -> Iterable[Row]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield Row(**json.loads(line))
        except (ValueError, TypeError):
            continue  # half a line of a killed process; its task runs again


def summary(rows: Iterable[Row]) -> Json:
    """What a sweep came to: counts, tokens, and the share of exact answers among those with a known one."""
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
