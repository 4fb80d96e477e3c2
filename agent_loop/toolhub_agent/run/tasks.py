"""The tasks of a sweep: read from JSON lines, with the field names that benchmark files have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolhub.errors import ConfigError
from toolhub_agent.types import Task

_IDS = ("id", "task_id")
_QUESTIONS = ("question", "task_question", "task_description", "task")
_ANSWERS = ("ground_truth", "answer", "final_answer")
_FILES = ("files", "file_path", "file_name")


def read_tasks(path: Path) -> list[Task]:
    """One task per line. Raises ConfigError with the line's number.

    ``{"id": ..., "question": ..., "ground_truth"?: ..., "files"?: [...]}``; MiroFlow's `task_id`, `task_question` and
    `file_path` are understood. Without an id the line's number is one.
    """
    tasks: dict[str, Task] = {}
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        task = _task(line, number, path)
        if task.id in tasks:
            raise ConfigError(f"the id {task.id!r} is there twice", path=str(path), line=number)
        tasks[task.id] = task
    if not tasks:
        raise ConfigError("there is no task in it", path=str(path))
    return list(tasks.values())


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise ConfigError("no such file", path=str(path)) from None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot be read: {exc}", path=str(path)) from exc


def _task(line: str, number: int, path: Path) -> Task:
    try:
        fields = json.loads(line)
    except ValueError as exc:
        raise ConfigError(f"not valid JSON: {exc}", path=str(path), line=number) from None
    if not isinstance(fields, dict):
        raise ConfigError("expected an object with a question", path=str(path), line=number)
    question = _first(fields, _QUESTIONS)
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(f"expected a text under one of {', '.join(_QUESTIONS)}", path=str(path), line=number)
    truth = _first(fields, _ANSWERS)
    return Task(
        str(_first(fields, _IDS) or number),
        question,
        files=_files(_first(fields, _FILES)),
        ground_truth=None if truth is None else str(truth),
    )


def _first(fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _files(named: Any) -> tuple[str, ...]:
    if not named:
        return ()
    return tuple(str(path) for path in named) if isinstance(named, list) else (str(named),)
