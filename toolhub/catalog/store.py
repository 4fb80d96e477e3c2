"""Saved answers of servers, for the next start of the hub: one small file per server.

The server's next start confirms or corrects a saved answer. A file that cannot be read or written never fails a call.
Files hold only entries with a name: tools, or answers to clients. What contains a secret or a value of one task is not
saved, because all tasks of the server would see it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolhub import __version__
from toolhub.catalog.first_answers import file_version
from toolhub.config import ServerSpec
from toolhub.config.redact import long_enough
from toolhub.model import Json
from toolhub.private_files import prune, read_private, write_private

FORMAT = 2
# Real lists have 2 to 200 KiB. Reading a larger file would block the event loop for longer than a call takes.
MAX_BYTES = 2 * 1024 * 1024
MAX_FILES = 200
_SCRIPTS = (".py", ".js", ".mjs", ".cjs", ".ts", ".sh")

logger = logging.getLogger(__name__)


class CatalogStore:
    """The folder of saved answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, spec: ServerSpec) -> list[Json] | None:
        """Return the entries that were saved last; None if there are none."""
        path = self.path(spec)
        try:
            kept = json.loads(read_private(path, limit=MAX_BYTES))
            entries = kept.pop("entries")
            if kept != _head(spec) or not _are_named(entries):
                return None
            os.utime(path)  # so that prune() keeps files that are in use
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError, KeyError, AttributeError, TypeError) as exc:
            logger.debug("cannot use the saved answers of server %r: %r", spec.name, exc)
            return None
        found: list[Json] = entries
        return found

    def write(self, spec: ServerSpec, entries: Sequence[Json]) -> None:
        """Save the entries. If they must not be saved, remove the previous ones."""
        try:
            text = json.dumps(entries)
        except (ValueError, TypeError, RecursionError):
            text = ""
        if not text or len(text) > MAX_BYTES or _repeats_private_values(spec, text):
            self.remove(spec)
            return
        path = self.path(spec)
        try:
            head = json.dumps(_head(spec))
            write_private(path, f'{head[:-1]}, "entries": {text}}}'.encode())
            prune(self.folder, most=MAX_FILES)
        except OSError as exc:
            logger.debug("cannot save the tools of server %r: %s", spec.name, exc)
            self.remove(spec)  # the previous file is out of date

    def remove(self, spec: ServerSpec) -> None:
        """Remove what is saved of a server."""
        try:
            self.path(spec).unlink(missing_ok=True)
        except OSError as exc:
            logger.debug("cannot remove the saved answers of server %r: %s", spec.name, exc)

    def path(self, spec: ServerSpec) -> Path:
        """Return the file of a server."""
        identity = f"{spec.name}:{spec.template_fingerprint}"
        return self.folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"


def _head(spec: ServerSpec) -> dict[str, Any]:
    """Return what must be equal for a saved answer to be used."""
    return {
        "format": FORMAT,
        "toolhub": __version__,  # the servers of toolhub change with it
        "server": spec.name,
        "fingerprint": spec.template_fingerprint,
        "files": _files(spec),
    }


def program_files(spec: ServerSpec) -> dict[str, str]:
    """Return the paths in a command line, by the number of the word. There may be no such file."""
    if spec.command is None or spec.template_fingerprint != spec.fingerprint():
        return {}  # the files differ from task to task
    words = enumerate([spec.command, *spec.args])
    return {
        str(number): os.path.join(spec.cwd or "", word)
        for number, word in words
        if os.sep in word or word.endswith(_SCRIPTS)
    }


def _files(spec: ServerSpec) -> dict[str, list[int]]:
    """Return the versions of the files in the command line. A script that was edited may have other tools."""
    versions = {number: file_version(path) for number, path in program_files(spec).items()}
    return {number: version for number, version in versions.items() if version is not None}


def _are_named(entries: Any) -> bool:
    return isinstance(entries, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in entries
    )


def _repeats_private_values(spec: ServerSpec, text: str) -> bool:
    values = spec.secrets | long_enough(spec.env.get(name, "") for name in spec.task_variables)
    return any(json.dumps(value)[1:-1] in text for value in values)
