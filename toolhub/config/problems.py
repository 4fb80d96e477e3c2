"""Problems of a configuration. They are collected, and raised together as one `ConfigError`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from toolhub.errors import ConfigError

Key = tuple[str | int, ...]
"""The path of a value: `("servers", "search", "args", 1)`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of one key. The message never contains a value of the file or the environment."""

    key: Key
    message: str


@dataclass(frozen=True, slots=True)
class SourceFile:
    """The name of a config file, and the line of each key (from 1)."""

    path: str
    lines: Mapping[Key, int] = field(default_factory=dict)

    def line(self, key: Key) -> int | None:
        """Return the line of the key, or of the nearest key above it that the file has."""
        while key and key not in self.lines:
            key = key[:-1]
        return self.lines.get(key)

    def error(self, problems: Iterable[Problem]) -> ConfigError:
        """Return one error with one line per problem, in the order of the file. Its fields are those of the first."""
        errors = sorted((self._one(problem) for problem in problems), key=lambda error: error.line or 0)
        first, *others = errors
        message = "\n".join([first.reason, *map(str, others)])
        return ConfigError(message, path=self.path, line=first.line, key=first.key)

    def _one(self, problem: Problem) -> ConfigError:
        return ConfigError(
            problem.message, path=self.path, line=self.line(problem.key), key=format_key_path(problem.key)
        )


def first_of_each_key(problems: Iterable[Problem]) -> list[Problem]:
    """Return the first problem of each key. Later problems of the same key only follow from it."""
    first: dict[Key, Problem] = {}
    for problem in problems:
        first.setdefault(problem.key, problem)
    return list(first.values())


def format_key_path(key: Key) -> str:
    """The key as people write it: `servers.search.args[1]`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return "".join(parts).removeprefix(".")


def unknown_key(name: object, known: Sequence[str]) -> str:
    """Return the message for an unknown key: the most similar known one, or all of them if none is similar."""
    near = did_you_mean(str(name), known) or f" known keys: {', '.join(sorted(known)) or 'none yet'}"
    return f"unknown key {str(name)!r};{near}"


def did_you_mean(text: str, choices: Sequence[str]) -> str:
    """Return ` did you mean 'x'?`, or "" if no choice is similar."""
    by_folded = {choice.casefold(): choice for choice in choices}
    near = difflib.get_close_matches(text.casefold(), by_folded, n=1)
    return f" did you mean {by_folded[near[0]]!r}?" if near else ""


def kind_of(value: object) -> str:
    """Return the kind of a value. The value itself may be a secret."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string" if value else "an empty string"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else type(value).__name__
