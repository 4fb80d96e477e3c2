"""References in strings: `${NAME}` and `${NAME:-default}` are replaced at load, `${task.id}` per task.

    ${NAME}            required; `${env:NAME}`, as editors write it, is the same
    ${NAME:-default}   the default when unset or empty; `${NAME-default}` only when unset
    ${task.<label>}    kept for `fill`; its value comes from a client, so `is_task_value` bounds what it may be
    $${                a literal `${`

A string with task variables becomes a `Template`, a list of parts. Its variables are filled in later. So a value from
the environment that looks like a reference is never read as one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolhub.config.problems import Key, Problem, kind_of
from toolhub.task_ids import TASK_VALUE_RULE, is_task_value

_REFERENCE = re.compile(r"(\$\$\{)|\$\{([^{}]*)\}|\$\{")
_VARIABLE = re.compile(r"(?:env:)?([A-Za-z_]\w*)(?:(:?-)(.*))?", re.ASCII | re.DOTALL)
_TASK_VARIABLE = re.compile(r"task\.([\w.-]+)")
_FORMS = "write ${NAME}, ${NAME:-default} (no braces in the default), ${task.<label>}, or $${ for a literal ${"


@dataclass(frozen=True, slots=True)
class TaskVariable:
    """`${task.<name>}`, filled in when a task begins."""

    name: str

    def __str__(self) -> str:
        return f"${{task.{self.name}}}"


@dataclass(frozen=True, slots=True)
class FromEnvironment:
    """The value of a variable, or its default, within a string."""

    text: str
    is_default: bool = False

    def __str__(self) -> str:
        return self.text


Template = tuple[str | TaskVariable, ...]


class BadReference(ValueError):
    """A reference is malformed, or its variable is not set or has a value that is not allowed."""


def parse(text: str, environ: Mapping[str, str]) -> list[str | FromEnvironment | TaskVariable]:
    """Return the parts of a string, with its environment references replaced. Raises BadReference."""
    parts: list[str | FromEnvironment | TaskVariable] = []
    end = 0
    for match in _REFERENCE.finditer(text):
        parts.append(text[end : match.start()])
        parts.append("${" if match[1] else _look_up(match[2], environ))
        end = match.end()
    return [part for part in [*parts, text[end:]] if part != ""]


def _look_up(body: str | None, environ: Mapping[str, str]) -> FromEnvironment | TaskVariable:
    if task_variable := _TASK_VARIABLE.fullmatch(body or ""):
        return TaskVariable(task_variable[1])
    variable = _VARIABLE.fullmatch(body or "")
    if not variable:
        raise BadReference(f"cannot read the ${{ reference; {_FORMS}")
    name, operator, default = variable.groups()
    value = environ.get(name)
    if value is not None and (value or operator != ":-"):
        return FromEnvironment(value)
    if operator is None:
        raise BadReference(
            f"environment variable {name} is not set; set it, or write ${{{name}:-default}}"
            f" (${{{name}:-}} makes it optional)"
        )
    return FromEnvironment(default, is_default=True)


def template_of(text: str) -> Template:
    """Return the parts of a string in which only `${task.*}` is a reference."""
    pieces = re.split(r"\$\{task\.([\w.-]+)\}", text)
    return tuple(TaskVariable(piece) if i % 2 else piece for i, piece in enumerate(pieces))


def fill(template: Template, values: Mapping[str, str]) -> str:
    """Return the text of a template. Raises BadReference for a variable that is unknown or has a forbidden value."""
    for part in template:
        if not isinstance(part, TaskVariable):
            continue
        if part.name not in values:
            known = ", ".join(f"task.{name}" for name in sorted(values)) or "none"
            raise BadReference(f"unknown task variable 'task.{part.name}'; known ones: {known}")
        if not is_task_value(values[part.name]):  # the message does not show the value, because it may be a secret
            raise BadReference(f"the value of 'task.{part.name}' is not allowed here: {TASK_VALUE_RULE}")
    return "".join(values[part.name] if isinstance(part, TaskVariable) else part for part in template)


@dataclass(slots=True)
class Expander:
    """Replaces the references in one section and records where values came from. Keys are relative to the section.

    task_fields: the fields that may contain task variables.
    """

    environ: Mapping[str, str]
    task_fields: frozenset[str] = frozenset()
    problems: list[Problem] = field(default_factory=list)
    inserted: list[tuple[Key, str]] = field(default_factory=list)
    templates: dict[Key, Template] = field(default_factory=dict)

    def expand(self, value: Any, key: Key = ()) -> Any:
        """Return a copy of the tree without references. An entry that is only an unset optional variable is dropped."""
        if isinstance(value, str):
            return self._expand_text(value, key) or ""
        if isinstance(value, list | tuple):
            return [self.expand(item, (*key, i)) for i, item in enumerate(value)]
        return self._expand_mapping(value, key) if isinstance(value, Mapping) else value

    def _expand_mapping(self, mapping: Mapping[Any, Any], key: Key) -> dict[str, Any]:
        expanded = {}
        for name, value in mapping.items():
            if not isinstance(name, str):
                self.problems.append(Problem(key, f"keys must be strings, found {kind_of(name)}"))
            elif not isinstance(value, str):
                expanded[name] = self.expand(value, (*key, name))
            elif (text := self._expand_text(value, (*key, name))) is not None:
                expanded[name] = text
        return expanded

    def _expand_text(self, text: str, key: Key) -> str | None:
        """Return None for an unset optional variable alone; the text unchanged if it has a problem."""
        try:
            parts = parse(text, self.environ)
        except BadReference as error:
            self.problems.append(Problem(key, str(error)))
            return text
        if parts == [FromEnvironment("", is_default=True)]:
            return None
        self._record(parts, key)
        return "".join(map(str, parts))

    def _record(self, parts: list[str | FromEnvironment | TaskVariable], key: Key) -> None:
        found = [part for part in parts if isinstance(part, FromEnvironment) and not part.is_default]
        self.inserted += [(key, part.text) for part in found]
        if not any(isinstance(part, TaskVariable) for part in parts):
            return
        if not key or key[0] not in self.task_fields:
            allowed = ", ".join(sorted(self.task_fields))
            where = f"only in {allowed}" if allowed else "only inside a server"
            self.problems.append(Problem(key, f"${{task.*}} can be used {where}"))
        self.templates[key] = tuple(part if isinstance(part, TaskVariable) else str(part) for part in parts)


def map_texts(value: Any, change: Callable[[Key, str], str], key: Key = ()) -> Any:
    """Return a copy of the tree with every string changed."""
    if isinstance(value, str):
        return change(key, value)
    if isinstance(value, Mapping):
        return {name: map_texts(item, change, (*key, name)) for name, item in value.items()}
    if isinstance(value, list):
        return [map_texts(item, change, (*key, i)) for i, item in enumerate(value)]
    return value


def texts(value: Any, key: Key = ()) -> Iterator[tuple[Key, str]]:
    """Yield every string of the tree with its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from texts(item, (*key, name))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from texts(item, (*key, i))
