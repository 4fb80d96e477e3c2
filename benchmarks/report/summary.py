"""The results of one run of benchmarks, and the lines printed at its end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common.machine import NOISY_PERCENT
from benchmarks.common.result import Json

INTERRUPTED = 130
"""Exit status, as a shell has it: 128 and the number of SIGINT."""


@dataclass
class Summary:
    """The results of one run. left_out and failed: the reason by name."""

    began: float = field(default_factory=time.monotonic)
    answered: dict[str, Json] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    is_interrupted: bool = False

    def exit_code(self) -> int:
        """Return the exit status. A question that was left out is a failure only if it was the only one."""
        if self.is_interrupted:
            return INTERRUPTED
        return int(bool(self.failed) or bool(self.left_out) and not self.answered)

    def lines(self, asked: int, page: Path | None) -> Iterator[str]:
        """Return the last lines of a run. asked: how many questions. page: shows the results."""
        wall = duration(time.monotonic() - self.began)
        yield f"{'Interrupted: ' * self.is_interrupted}{len(self.answered)} of {asked} questions answered in {wall}."
        yield from (f"Left out: {name} ({why})." for name, why in self.left_out.items())
        yield from (f"Failed: {name} ({why})." for name, why in self.failed.items())
        for name, result in self.answered.items():
            yield from (f"{name}: {note}" for note in gaps(result))
        if noisy := [name for name, result in self.answered.items() if result["noise"]["noisy"]]:
            yield f"Noisy, as others used more than {NOISY_PERCENT:.0f} % of a core: {', '.join(noisy)}."
        if page and self.answered:
            yield f"The page is {page}."


def gaps(result: Json) -> list[str]:
    """The notes on what could not be measured there."""
    return [note for note in result["notes"] if note.startswith("Left out")]


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
