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
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolhub import __version__
from toolhub.config import ServerSpec
from toolhub.config.redact import long_enough
from toolhub.model import Json
from toolhub.private_files import read_private, write_private

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
        path = self._path(spec)
        try:
            kept = json.loads(read_private(path, limit=MAX_BYTES))
            entries = kept.pop("entries")
            if kept != _head(spec) or not _are_named(entries):
                return None
            os.utime(path)  # so that _prune() keeps files that are in use
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
        path = self._path(spec)
        try:
            head = json.dumps(_head(spec))
            write_private(path, f'{head[:-1]}, "entries": {text}}}'.encode())
            self._prune()
        except OSError as exc:
            logger.debug("cannot save the tools of server %r: %s", spec.name, exc)
            self.remove(spec)  # the previous file is out of date

    def remove(self, spec: ServerSpec) -> None:
        """Remove what is saved of a server."""
        try:
            self._path(spec).unlink(missing_ok=True)
        except OSError as exc:
            logger.debug("cannot remove the saved answers of server %r: %s", spec.name, exc)

    def _path(self, spec: ServerSpec) -> Path:
        identity = f"{spec.name}:{spec.template_fingerprint}"
        return self.folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"

    def _prune(self) -> None:
        """Remove the oldest files beyond MAX_FILES, also temporary files of hubs that died while writing."""
        with os.scandir(self.folder) as listing:
            entries = list(listing)
        if len(entries) > MAX_FILES:
            entries.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime)
            for entry in entries[:-MAX_FILES]:
                os.unlink(entry.path)


def _head(spec: ServerSpec) -> dict[str, Any]:
    """Return what must be equal for a saved answer to be used."""
    return {
        "format": FORMAT,
        "toolhub": __version__,  # the servers of toolhub change with it
        "server": spec.name,
        "fingerprint": spec.template_fingerprint,
        "files": _files(spec),
    }


def _files(spec: ServerSpec) -> dict[str, list[int]]:
    """Return size and time of each file in the command line. A script that was edited may have other tools."""
    if spec.command is None or spec.template_fingerprint != spec.fingerprint():
        return {}  # the files differ from task to task
    found = {}
    for number, word in enumerate([spec.command, *spec.args]):
        if os.sep in word or word.endswith(_SCRIPTS):
            try:
                state = os.stat(os.path.join(spec.cwd or "", word))
            except (OSError, ValueError):
                continue
            if stat.S_ISREG(state.st_mode):
                found[str(number)] = [state.st_size, state.st_mtime_ns]
    return found


def _are_named(entries: Any) -> bool:
    return isinstance(entries, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in entries
    )


def _repeats_private_values(spec: ServerSpec, text: str) -> bool:
    values = spec.secrets | long_enough(spec.env.get(name, "") for name in spec.task_variables)
    return any(json.dumps(value)[1:-1] in text for value in values)
