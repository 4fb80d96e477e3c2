"""One command to type on one machine."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Line:
    """title: what it starts. node: the host to start it on. notes: what to know before."""

    title: str
    node: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def shell(self) -> str:
        """In one line, variables in front."""
        return " ".join([*self._variables(), *map(shlex.quote, self.argv)])

    def pretty(self) -> str:
        """The same, a flag with its values per line."""
        lines: list[list[str]] = [[name] for name in self._variables()] + [[]]
        for word in self.argv:
            if word.startswith("--"):
                lines.append([])
            lines[-1].append(shlex.quote(word))
        return " \\\n  ".join(" ".join(line) for line in lines if line)

    def _variables(self) -> list[str]:
        return [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
