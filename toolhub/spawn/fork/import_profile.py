"""Import profiles: which modules earlier processes of a server imported. They outlive the hub.

The files hold only module names. A name that is no identifier is dropped when a file is read. Each zygote decides anew
which of the names it loads.
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
# Files of programs that are no longer used are deleted beyond this number.
_MOST_FILES = 256
_FALLBACKS = "fallbacks.json"

logger = logging.getLogger(__name__)


@dataclass
class ImportProfile:
    """names: in the order of their import; None if no process was observed yet. excluded: modules that a zygote must
    not load, with the reasons."""

    names: list[str] | None = None
    excluded: dict[str, str] = field(default_factory=dict)

    def add(self, names: Iterable[str]) -> bool:
        """Append the names that are new; return True if there were any."""
        known = dict.fromkeys(self.names or [])
        before = len(known)
        known.update(dict.fromkeys(filter(is_module_name, names)))
        self.names = list(known)[:MOST_NAMES]
        return len(self.names) > before


def is_module_name(name: object) -> bool:
    return isinstance(name, str) and len(name) <= _LONGEST_NAME and all(map(str.isidentifier, name.split(".")))


class ImportProfiles:
    """A folder with one file per server and program, and one file that lists the servers that were not forked.

    folder: None: nothing is saved.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, identity: Sequence[str]) -> ImportProfile:
        """Return a server's profile; an empty one if its file is missing, damaged or writable by other users."""
        content = self._read(_file_name(identity))
        names, excluded = content.get("modules"), content.get("excluded")
        if not isinstance(names, list) or not isinstance(excluded, list):
            return ImportProfile()
        reason = "an earlier hub found that it cannot be preloaded"
        profile = ImportProfile(excluded=dict.fromkeys(filter(is_module_name, excluded), reason))
        profile.add(names)
        return profile

    def save(self, identity: Sequence[str], profile: ImportProfile) -> None:
        content = {"program": list(identity), "modules": profile.names or [], "excluded": list(profile.excluded)}
        self._write(_file_name(identity), content)
        self._prune()

    def fallbacks(self) -> dict[str, str]:
        """Return why servers with `spawn: fork` were executed instead, by server name."""
        return {str(name): str(reason) for name, reason in self._read(_FALLBACKS).items()}

    def set_fallback(self, server: str, reason: str | None) -> None:
        """Save why a server was executed, for `toolhub doctor`. reason: None: it was forked."""
        saved = self.fallbacks()
        changed = {name: text for name, text in saved.items() if name != server} | ({server: reason} if reason else {})
        if changed != saved:
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
            logger.debug("cannot save the import profile %s: %s", self._folder / name, exc)

    def _prune(self) -> None:
        if self._folder is None:
            return
        try:
            files = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in files[_MOST_FILES:]:
                path.unlink(missing_ok=True)
        except OSError as exc:
            logger.debug("cannot delete old import profiles in %s: %s", self._folder, exc)


def _file_name(identity: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(identity)).encode()).hexdigest()[:24] + ".json"
