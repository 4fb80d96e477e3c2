"""The format of a recording: one file per task, JSON lines, compressed with gzip when the task has ended.

The first line is the header. The others describe a server (its tools, and what it said about itself) or hold one
exchange each: a request, what the server told meanwhile, and how it ended. Exchanges are in the order of their ends;
`n` is the order of their starts.

An exchange is found by its key (server, tool, arguments) and its history: the earlier exchanges with this server that
may have changed its state. This is the rule of TVCache (arXiv 2602.10986). Exchanges that change nothing are no part of
a history. So a stateless server's exchanges, and those of read-only tools before any change, are found by key alone.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from toolhub import __version__
from toolhub.cassette import Kind
from toolhub.config.rules import check_name
from toolhub.errors import ConfigError
from toolhub.model import Json, ServerInfo

FORMAT = 1
SUFFIX = ".jsonl"
PACKED_SUFFIX = ".jsonl.gz"
# Of one task, before compression. A research task with 600 calls has some 20 MiB. A larger file would fill the memory.
MAX_BYTES = 512 * 1024 * 1024
MAX_FILES = 20_000
_HEADER_BYTES = 64 * 1024
_NO_HISTORY = b""

Time = Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


Line = TypeVar("Line", bound=_Line)


class Header(_Line):
    """The first line. `toolhub_cassette` is the version of the format."""

    toolhub_cassette: Literal[1]
    toolhub: str
    task: str
    run: str = ""
    servers: list[Annotated[str, AfterValidator(check_name)]]
    recorded_at: str

    @classmethod
    def now(cls, task: str, run: str, servers: Iterable[str]) -> Header:
        """Return the header of a recording that begins now."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(toolhub_cassette=1, toolhub=__version__, task=task, run=run, servers=list(servers), recorded_at=time)


class Description(_Line):
    """What is known about a server. None: it was not asked for."""

    describes: str
    info: ServerInfo | None = None
    tools: list[Json] | None = None


class Exchange(_Line):
    """A request and how it ended: with a result, an error of toolhub, or neither if its caller cancelled it.

    changes: it may have changed what the server answers later. events: (seconds, method, params) of notifications.
    sent: whether the server may have got it. params: those of a relayed tool call beside its name and arguments.
    """

    n: int
    kind: Kind = "call"
    server: str
    tool: str
    arguments: Json
    params: Json = {}
    era: Literal["handshake", "modern"] = "handshake"
    changes: bool
    sent: Literal["no", "maybe"]
    began: Time
    seconds: Time
    events: list[tuple[Time, str, Json]] = []
    result: Json | None = None
    error: Json | None = None

    @property
    def key(self) -> bytes:
        return key_of(self.kind, self.server, self.tool, self.arguments, self.params, self.era)

    @property
    def outcome(self) -> str:
        if self.error is not None:
            return str(self.error.get("type"))
        if self.result is None:
            return "cancelled"
        return "tool_error" if self.result.get("isError") else "ok"


def key_of(kind: str, server: str, tool: str, arguments: Any, params: Any, era: str) -> bytes:
    """Return a digest that is equal for equal requests. `1`, `1.0` and `true` differ; the order of keys does not."""
    text = json.dumps([kind, server, tool, arguments, params, era], sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def history_after(history: bytes, key: bytes) -> bytes:
    """Return the history that a change with this key adds to another one."""
    return hashlib.blake2b(history + key, digest_size=16).digest()


@dataclass
class Recording:
    """One task's file, read whole. exchanges: in the order of their starts."""

    path: Path
    header: Header
    servers: dict[str, Description] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    index: dict[tuple[bytes, bytes], list[Exchange]] = field(default_factory=dict)
    """The exchanges of each (history, key)."""
    histories: dict[int, bytes] = field(default_factory=dict)
    """The history of each exchange, by its number."""

    def find(self, history: bytes, key: bytes) -> list[Exchange]:
        return self.index.get((history, key), [])

    def first_keys(self) -> set[bytes]:
        """Return the keys of the exchanges with which a task can begin."""
        return {key for history, key in self.index if history == _NO_HISTORY}

    def changes_before(self, exchange: Exchange) -> list[Exchange]:
        """Return the exchanges that are an exchange's history."""
        return [one for one in self.exchanges if one.changes and one.n < exchange.n and one.server == exchange.server]

    def make_index(self) -> None:
        """Sort the exchanges, and find the history of each."""
        self.exchanges.sort(key=lambda exchange: exchange.n)
        now: dict[str, bytes] = {}
        for exchange in self.exchanges:
            history, key = now.get(exchange.server, _NO_HISTORY), exchange.key
            self.histories[exchange.n] = history
            self.index.setdefault((history, key), []).append(exchange)
            if exchange.changes:
                now[exchange.server] = history_after(history, key)


def files_in(folder: Path) -> list[Path]:
    """Return the recordings in a folder, oldest first. Raises ConfigError."""
    try:
        with os.scandir(folder) as listing:
            found = [entry for entry in listing if entry.name.endswith((SUFFIX, PACKED_SUFFIX))]
            found.sort(key=lambda entry: (entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
    except OSError as exc:
        raise ConfigError(f"cannot read the cassette {folder}: {exc.strerror or exc}") from exc
    if not found:
        raise ConfigError(f"the cassette {folder} holds no recording (*{SUFFIX}, *{PACKED_SUFFIX})")
    if len(found) > MAX_FILES:
        raise ConfigError(f"the cassette {folder} holds {len(found)} recordings; at most {MAX_FILES} are read")
    return [Path(entry.path) for entry in found]


def read_header(path: Path) -> Header:
    """Return the first line of a recording. Raises ConfigError."""
    with _opened(path) as file:
        _, line = next(_lines(path, file, _HEADER_BYTES), (1, b""))
        return _validated(Header, _parsed(path, 1, line), path, 1)


def read_recording(path: Path) -> Recording:
    """Read a recording whole. Raises ConfigError, with the line, for a file that is damaged, too large or none.

    The last line of a file that is not compressed may be incomplete, because a hub that was killed wrote it.
    """
    with _opened(path) as file:
        lines = _lines(path, file, MAX_BYTES)
        _, first = next(lines, (1, b""))
        found = Recording(path, _validated(Header, _parsed(path, 1, first), path, 1))
        for number, line in lines:
            if not line.endswith(b"\n") and path.name.endswith(SUFFIX):
                break
            value = _parsed(path, number, line)
            if isinstance(value, dict) and "describes" in value:
                described = _validated(Description, value, path, number)
                found.servers[described.describes] = described
            else:
                found.exchanges.append(_validated(Exchange, value, path, number))
    try:
        found.make_index()
    except RecursionError as exc:
        raise ConfigError(f"this recording is damaged: {exc}", path=str(path)) from exc
    return found


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        # Non-blocking, because opening a named pipe would wait for a writer for ever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as exc:
        raise ConfigError(f"cannot read this recording: {exc.strerror or exc}", path=str(path)) from exc
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ConfigError("cannot read this recording: it is not a regular file", path=str(path))
        if not path.name.endswith(PACKED_SUFFIX):
            yield file
            return
        with gzip.open(file, "rb") as unpacked:
            yield unpacked  # type: ignore[misc]  # a GzipFile is not declared as IO, but has what is used here


def _lines(path: Path, file: IO[bytes], limit: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with their numbers. Raises ConfigError beyond `limit` bytes after decompression."""
    left, number = limit, 0
    try:
        while line := file.readline(left + 1):
            number += 1
            left -= len(line)
            if left < 0:
                raise ConfigError(f"this recording is larger than {limit} bytes", path=str(path), line=number)
            yield number, line
    except (OSError, EOFError, zlib.error) as exc:
        raise ConfigError(f"this recording is damaged: {exc}", path=str(path), line=number + 1) from exc


def _parsed(path: Path, number: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"this is not a line of a recording: {exc}", path=str(path), line=number) from exc


def _validated(kind: type[Line], value: Any, path: Path, number: int) -> Line:
    version = value.get("toolhub_cassette") if isinstance(value, dict) else None
    if kind is Header and isinstance(version, int) and version != FORMAT:
        raise ConfigError(
            f"this recording has format {version}; this version of toolhub reads format {FORMAT}: record it again",
            path=str(path),
            line=number,
        )
    try:
        return kind.model_validate(value)
    except ValidationError as exc:
        problem = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise ConfigError(
            f"this is not a line of a recording: {where + ': ' if where else ''}{problem['msg']}",
            path=str(path),
            line=number,
        ) from exc
