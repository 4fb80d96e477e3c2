"""What earlier processes of a program imported, kept over restarts of the hub.

The files hold module names and nothing else, and are read as such: a name that is no identifier is dropped, and which
names may be loaded at all is decided anew by each zygote.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolhub.private_files import read_private, write_private

MOST_NAMES, _LONGEST_NAME = 4000, 200
_FILE_BYTES = 1 << 20
# Programs come and go; more than this many on one machine at a time would be a surprise.
_MOST_FILES = 256
_FALLBACKS = "fallbacks.json"

logger = logging.getLogger(__name__)


@dataclass
class ImportProfile:
    """names: in the order they were imported; None if nobody has watched yet. excluded: not to be loaded, and why."""

    names: list[str] | None = None
    excluded: dict[str, str] = field(default_factory=dict)

    def add(self, names: Iterable[str]) -> bool:
        """Append what is new; True if something was."""
        known = dict.fromkeys(self.names or [])
        before = len(known)
        known.update(dict.fromkeys(filter(is_module_name, names)))
        self.names = list(known)[:MOST_NAMES]
        return len(self.names) > before


def is_module_name(name: object) -> bool:
    return isinstance(name, str) and len(name) <= _LONGEST_NAME and all(map(str.isidentifier, name.split(".")))


class ImportProfiles:
    """A folder with one file per program, and one with the servers that are not forked. None: nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, identity: Sequence[str]) -> ImportProfile:
        """Return what is known about a program; nothing if its file is missing, damaged or somebody else's."""
        content = self._read(_file_name(identity))
        names, excluded = content.get("modules"), content.get("excluded")
        if not isinstance(names, list) or not isinstance(excluded, list):
            return ImportProfile()
        modules = ImportProfile(excluded=dict.fromkeys(filter(is_module_name, excluded), "found out earlier"))
        modules.add(names)
        return modules

    def save(self, identity: Sequence[str], modules: ImportProfile) -> None:
        content = {"program": list(identity), "modules": modules.names or [], "excluded": list(modules.excluded)}
        self._write(_file_name(identity), content)
        self._prune()

    def fallbacks(self) -> dict[str, str]:
        """Why servers with `spawn: fork` were executed instead, by server name."""
        return {str(name): str(why) for name, why in self._read(_FALLBACKS).items()}

    def set_fallback(self, server: str, reason: str | None) -> None:
        """Keep the reason for `toolhub doctor`; None: it was forked."""
        kept = self.fallbacks()
        changed = {name: why for name, why in kept.items() if name != server} | ({server: reason} if reason else {})
        if changed != kept:
            self._write(_FALLBACKS, changed)

    def _read(self, name: str) -> dict[str, Any]:
        if self._folder is None:
            return {}
        try:
            content = json.loads(read_private(self._folder / name, limit=_FILE_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}

    def _write(self, name: str, content: dict[str, Any]) -> None:
        if self._folder is None:
            return
        try:
            write_private(self._folder / name, json.dumps(content).encode())
        except OSError as exc:  # a full disk must not stop the tools
            logger.debug("what was learned about forking cannot be kept: %s", exc)

    def _prune(self) -> None:
        if self._folder is None:
            return
        try:
            files = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in files[_MOST_FILES:]:
                path.unlink(missing_ok=True)
        except OSError as exc:
            logger.debug("old files in %s stay: %s", self._folder, exc)


def _file_name(identity: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(identity)).encode()).hexdigest()[:24] + ".json"
