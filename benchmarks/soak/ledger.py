"""What was called, what was executed and what callers were told, and the rules that must hold between them.

Every call has a key of its own, such as `2-1047`: the load process and the number of the call. A tool appends the key
to one file before it answers. A load process appends a record to a file of its own for each thing it learns about a
call. No rule needs a clock: what counts is how often a key was executed, and what its caller was told.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

# Number of the call, what happened, which server, error class, milliseconds.
RECORD = struct.Struct("<IBBBxI")
# Every fifth call is of a tool that may be repeated, as agents read more than they write.
_REPEATABLE_EACH = 5
# Set for calls whose execution no tool writes down: code in a sandbox, which counts by itself.
_NOT_LEDGERED = 1 << 7

ERRORS = (
    "",
    "Overloaded",
    "StartError",
    "CallTimeout",
    "SessionLost",
    "CircuitOpen",
    "ProtocolViolation",
    "TaskClosed",
    "HubClosed",
    "HubUnreachable",
    "HubTimeout",
    "HubLost",
    "ToolNotFound",
    "ConfigError",
    "Unauthorized",
    "tool error",
    "MCP client error",
    "other",
)
SERVERS = ("exec", "fork", "shared", "builtin", "http", "python", "mcp")


class Told(IntEnum):
    """What a caller learned."""

    ASKED = 0
    ANSWERED = 1
    WRONG = 2
    """An answer that is not this call's."""
    UNSENT = 3
    """An error with `sent` = "no": the call may be repeated."""
    MAYBE = 4
    """An error with `sent` = "maybe"."""
    GAVE_UP = 5
    """The caller stops trying, after errors that it was told."""


def is_repeatable(number: int) -> bool:
    """Whether the call uses the tool that is declared read-only, so that the hub may repeat it."""
    return number % _REPEATABLE_EACH == 0


def error_number(name: str) -> int:
    """The place of an error class in `ERRORS`; the last for a class that is not there."""
    return ERRORS.index(name) if name in ERRORS else len(ERRORS) - 1


@dataclass(frozen=True)
class CallRecord:
    number: int
    told: Told
    server: str
    error: str = ""
    milliseconds: int = 0

    def pack(self) -> bytes:
        server, error = SERVERS.index(self.server), error_number(self.error)
        return RECORD.pack(self.number, self.told, server, error, min(self.milliseconds, 2**32 - 1))


def unpack(data: bytes) -> Iterator[CallRecord]:
    """Return the records of a file's bytes; a last one that was cut short is left out."""
    whole = len(data) - len(data) % RECORD.size
    for number, told, server, error, milliseconds in RECORD.iter_unpack(data[:whole]):
        yield CallRecord(number, Told(told), SERVERS[server], ERRORS[error], milliseconds)


class Tail:
    """Reads what is appended to a file since the last time, in whole units of `size` bytes or in whole lines."""

    def __init__(self, path: Path, *, size: int = 0) -> None:
        self.path = path
        self._size = size
        self._place = 0

    def read(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self._place)
                data = file.read()
        except FileNotFoundError:
            return b""
        whole = len(data) - len(data) % self._size if self._size else data.rfind(b"\n") + 1
        self._place += whole
        return data[:whole]


def append(path: str | Path, data: bytes) -> None:
    """Append in one write: writers in several processes do not mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


@dataclass
class CallCounts:
    """What the soak publishes about calls. Counts can be added: an interrupted run continues with a new ledger."""

    calls: int = 0
    answered: int = 0
    by_server: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """`SessionLost/maybe`: attempts that ended with this error and this `sent`."""
    given_up: int = 0
    """Calls whose caller was told an error and stopped trying."""
    wrong: int = 0
    lost: int = 0
    """Calls that ended neither with an answer nor with an error."""
    executed_twice: int = 0
    """Keys of calls that must not be repeated."""
    repeated: int = 0
    """Keys of read-only calls that were executed more than once, as they may be."""
    broken_promises: int = 0
    """Calls that were executed although every error said that nothing was sent."""
    unexplained: int = 0
    """Calls that were answered and never executed."""
    milliseconds: Counter[int] = field(default_factory=Counter)
    """How many outcomes took so long, in steps of about 5 %."""
    longest_ms: int = 0
    """The longest time for which one attempt waited for its answer or its error."""

    def to_json(self) -> dict[str, Any]:
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()}

    @classmethod
    def of_json(cls, data: dict[str, Any]) -> CallCounts:
        found: dict[str, Any] = {
            name: Counter(value) if isinstance(value, dict) else value for name, value in data.items()
        }
        found["milliseconds"] = Counter({int(step): count for step, count in data["milliseconds"].items()})
        return cls(**found)

    def add(self, other: CallCounts) -> None:
        for name, value in vars(other).items():
            if isinstance(value, Counter):
                getattr(self, name).update(value)
            elif name == "longest_ms":
                self.longest_ms = max(self.longest_ms, value)
            else:
                setattr(self, name, getattr(self, name) + value)


class ProcessLedger:
    """The calls of one load process."""

    def __init__(self) -> None:
        self._told = bytearray()
        self._executed = bytearray()
        self.counts = CallCounts()

    def take(self, records: Iterable[CallRecord]) -> None:
        counts = self.counts
        for record in records:
            self._mark(self._told, record.number, 1 << record.told)
            if record.told is Told.ASKED:
                counts.calls += 1
                if record.server == "python":
                    self._mark(self._told, record.number, _NOT_LEDGERED)
                counts.by_server[record.server] += 1
                continue
            if record.told is Told.GAVE_UP:
                counts.given_up += 1
                continue
            counts.milliseconds[step_of(record.milliseconds)] += 1
            counts.longest_ms = max(counts.longest_ms, record.milliseconds)
            counts.answered += record.told is Told.ANSWERED
            counts.wrong += record.told is Told.WRONG
            if record.told in (Told.UNSENT, Told.MAYBE):
                sent = "no" if record.told is Told.UNSENT else "maybe"
                counts.errors[f"{record.error}/{sent}"] += 1

    def execute(self, number: int) -> None:
        if number >= len(self._executed):
            self._executed.extend(bytes(max(1024, number + 1 - len(self._executed))))
        self._executed[number] = min(255, self._executed[number] + 1)

    def _mark(self, marks: bytearray, number: int, bit: int) -> None:
        if number >= len(marks):
            marks.extend(bytes(max(1024, number + 1 - len(marks))))
        marks[number] |= bit

    def close(self) -> CallCounts:
        """Judge every call. All clients have stopped, so a call without an outcome will never have one."""
        counts = self.counts
        for number, told in enumerate(self._told):
            if not told & 1 << Told.ASKED:
                continue
            times = self._executed[number] if number < len(self._executed) else 0
            ended = told & (1 << Told.ANSWERED | 1 << Told.WRONG | 1 << Told.GAVE_UP)
            counts.lost += not ended
            if told & _NOT_LEDGERED:
                continue
            if times > 1:
                counts.executed_twice += not is_repeatable(number)
                counts.repeated += is_repeatable(number)
            if told & 1 << Told.ANSWERED:
                counts.unexplained += times == 0
            elif ended and not told & (1 << Told.MAYBE | 1 << Told.WRONG):
                counts.broken_promises += times > 0
        return counts


class Ledger:
    """The ledgers of all load processes of one run, read from its folder."""

    def __init__(self, folder: Path, books: int) -> None:
        self.executed_path = folder / "executed"
        self._books = [ProcessLedger() for _ in range(books)]
        self._tails = [Tail(self.told_path(folder, number), size=RECORD.size) for number in range(books)]
        self._executed = Tail(self.executed_path)
        self._others: Counter[str] = Counter()

    @staticmethod
    def told_path(folder: Path, book: int) -> Path:
        return folder / f"told-{book}"

    def read(self) -> CallCounts:
        """Take in what was written since the last time, and return the counts so far."""
        for book, tail in zip(self._books, self._tails, strict=True):
            book.take(unpack(tail.read()))
        for key in self._executed.read().decode().split():
            book_name, _, number = key.partition("-")
            if book_name.isdecimal():
                self._books[int(book_name)].execute(int(number))
            else:
                self._others[key] += 1
        return self._sum()

    def close(self) -> CallCounts:
        """Return the verdict. Call it once, when every client and every tool has stopped."""
        self.read()
        for book in self._books:
            book.close()
        counts = self._sum()
        counts.executed_twice += sum(times > 1 for times in self._others.values())
        return counts

    def _sum(self) -> CallCounts:
        counts = CallCounts()
        for book in self._books:
            counts.add(book.counts)
        return counts


def step_of(milliseconds: int) -> int:
    """The lower end of the step that a time falls in: exact up to 20 ms, then about 5 % wide."""
    if milliseconds < 20:
        return milliseconds
    width = 1 << max(0, milliseconds.bit_length() - 5)
    return milliseconds - milliseconds % width


def quantile(steps: Counter[int], share: float) -> int:
    """The time below which this share of the outcomes lies; 0 of none."""
    left = share * sum(steps.values())
    for step in sorted(steps):
        left -= steps[step]
        if left <= 0:
            return step
    return max(steps, default=0)
