"""What `toolhub stdio` tells its client before the gateway is imported, which takes a second.

For each command line one file has the answers that a gateway gives from the saved answers of its servers alone. They
are used only while everything that they were made from is the same: toolhub, the config and its variables, the files of
the servers' command lines, and the saved answers. The gateway answers the same requests again when it is up.

This module imports only what takes milliseconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from toolhub import __version__
from toolhub.private_files import default_state_folder, prune, read_private, write_private

FORMAT = 1
METHODS = frozenset(
    {"initialize", "server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list"}
)
"""The requests whose answers are kept."""
_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
# Real lists have 2 to 200 KiB.
_MAX_BYTES = 4 * 1024 * 1024
# Six requests of eight kinds of clients.
_MOST_ANSWERS = 48
_MOST_FILES = 200


class AnswerSources(NamedTuple):
    """What answers are made from.

    contents: files that must not change. programs: files whose size and time must not change. variables: of the
    environment. A file or variable that is not there counts as well.
    """

    contents: Sequence[str]
    programs: Sequence[str]
    variables: Sequence[str]

    def state(self) -> str:
        """Return a digest of all sources as they are now."""
        found = [
            [FORMAT, __version__],
            [[path, _content(path)] for path in self.contents],
            [[path, file_version(path)] for path in self.programs],
            [[name, os.environ.get(name)] for name in self.variables],
        ]
        return _digest(found)


def answers_path(arguments: Sequence[str], environ: Mapping[str, str]) -> Path:
    """Return the file of a command line in this folder. arguments: without the program's name."""
    settings = {name: value for name, value in environ.items() if name.startswith("TOOLHUB_")}
    name = _digest([list(arguments), os.getcwd(), settings])[:32]
    return default_state_folder(environ) / "stdio" / f"{name}.json"


class FirstAnswers:
    """The answers of one command line: JSON texts of results, by `request_key()`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, str]:
        """Return the answers; none if they may be out of date."""
        kept = self._kept()
        try:
            sources = AnswerSources(*kept["sources"])
            answers: dict[str, str] = kept["answers"]
            return answers if sources.state() == kept["state"] else {}
        except (KeyError, TypeError, ValueError):
            return {}

    def keep(self, sources: AnswerSources, state: str, answers: Mapping[str, str]) -> None:
        """Keep answers beside those that were made in the same state of the sources. Raises OSError."""
        kept = self._kept()
        is_current = kept.get("state") == state and kept.get("sources") == [list(names) for names in sources]
        before = kept.get("answers") if is_current else None
        together = {**(before if isinstance(before, dict) else {}), **answers}
        if together == before:
            return
        newest = dict(list(together.items())[-_MOST_ANSWERS:])
        text = json.dumps({"sources": sources, "state": state, "answers": newest})
        if len(text) <= _MAX_BYTES:
            write_private(self._path, text.encode())
            prune(self._path.parent, most=_MOST_FILES)

    def _kept(self) -> dict[str, Any]:
        try:
            kept = json.loads(read_private(self._path, limit=_MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return kept if isinstance(kept, dict) else {}


class EarlyMessages(NamedTuple):
    """What was read from stdin before the gateway was there.

    messages: each with the result that the client was told, as a JSON text; None for what is not a request. rest: what
    was read beyond these messages.
    """

    messages: list[tuple[Any, str | None]]
    rest: bytes


class FirstRequests:
    """The requests of one client, as far as they can be answered with what is kept."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self._answers = answers
        self._hello: Any = None
        self._is_modern: bool | None = None
        """Set by the first request."""

    def answer(self, message: Any) -> str | None:
        """Return the result of a request as a JSON text, None if only the gateway can answer."""
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return None
        method, params, number = message.get("method"), message.get("params"), message.get("id")
        if not isinstance(params, dict | None) or not (type(number) is int or _is_plain(number)):
            return None
        meta = params.get("_meta") if params is not None else None
        has_envelope = isinstance(meta, dict) and meta.get(_VERSION_KEY) is not None
        if method == "initialize":
            if self._is_modern is not None:
                return None
            self._is_modern, self._hello = False, params
        elif self._is_modern is None:
            self._is_modern = has_envelope
        if self._is_modern != (has_envelope and method != "initialize") or not (self._is_modern or self._hello):
            return None
        if method == "ping" and not self._is_modern:
            return "{}"
        return self._answers.get(request_key(self._hello, str(method), params))


def request_key(hello: Any, method: str, params: Any) -> str:
    """Return the same key for requests that are answered alike.

    hello: what the client said in `initialize`; None for a client of revision 2026-07-28, which says it in each
    request. A progress token changes no answer.
    """
    return _digest([_without_progress(hello), method, _without_progress(params)])


def file_version(path: str) -> list[int] | None:
    """Return size and time of a file; None if it is not there."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return [found.st_size, found.st_mtime_ns] if stat.S_ISREG(found.st_mode) else None


def _without_progress(params: Any) -> Any:
    if not isinstance(params, dict) or not isinstance(meta := params.get("_meta"), dict) or "progressToken" not in meta:
        return params
    kept = {name: value for name, value in meta.items() if name != "progressToken"}
    others = {name: value for name, value in params.items() if name != "_meta"}
    return {**others, "_meta": kept} if kept else others or None


def _is_plain(number: Any) -> bool:
    return isinstance(number, str) and number.isascii() and number.isprintable()


def _content(path: str) -> str | None:
    if file_version(path) is None:  # to open a named pipe would wait for a writer
        return None
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
