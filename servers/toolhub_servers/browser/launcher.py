"""The program that Playwright starts in place of Chromium: it changes two of the arguments, and becomes Chromium.

Under root it becomes an ordinary user before that: Chromium's own sandbox does not work for root, and what breaks out
of it shall not be root.

Playwright passes lists of its own, and of an argument that is given twice Chromium heeds the last. So what is to be
added to a list of Playwright's has to be added there, where its list is known.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sys
from pathlib import Path

logger = logging.getLogger(__name__)

# Chromium opens these as hidden pages in every window, for suggestions below the address bar that nobody types into:
# two processes with some 20 MB each for every task.
NEEDLESS = ("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup")
# A link such as mailto: makes Chromium start one of these without asking.
_OPENERS = ("xdg-open", "xdg-email", "gio", "kde-open", "gnome-open")
# A socket's path has 108 bytes at most on Linux and 104 elsewhere, and Chromium adds some 45.
_LONGEST_TMPDIR = 58

_SCRIPT = """\
#!/bin/sh
for argument do
    shift
    case $argument in
        --disable-features=*) argument=$argument,{needless} ;;
        --user-data-dir=*)
            rmdir "${{argument#*=}}"
            argument=--user-data-dir={profile} ;;
    esac
    set -- "$@" "$argument"
done
exec {chromium} "$@"
"""
_BECOME = """\
import os, sys
uid = int(sys.argv[1])
try:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as exc:
    sys.exit(f"no sandbox: the hub is root, and uid {uid} cannot run {sys.argv[2]}: {exc}")
"""


class Launcher:
    """How to start one Chromium, so that all it writes is in `folder`, which has to be there and empty."""

    def __init__(self, folder: Path, chromium: str, *, uid: int | None = None) -> None:
        """uid: whom Chromium runs as; None: as the hub. Raises OSError."""
        self.uid = uid
        self.artifacts = _made(folder / "artifacts", uid)
        """Where downloads are while they grow."""
        self.home = str(folder / "profile")
        """For its HOME, if it is not the hub's."""
        if uid is not None:
            _made(folder / "profile", uid)
            # The folder stays root's: whoever could write there could replace the script, which root runs.
            folder.chmod(0o711)
        self.path = _written(folder, chromium, uid)
        """What to run."""
        self.programs = _without_openers(folder)
        """A folder to be first on its PATH."""
        own = folder if uid is None else _made(folder / "t", uid)
        self.tmpdir = str(own) if len(str(own)) <= _LONGEST_TMPDIR else None
        """For its TMPDIR; None: the path is too long for the sockets in there."""


def _made(folder: Path, uid: int | None = None) -> Path:
    folder.mkdir(mode=0o700)
    if uid is not None:
        os.chown(folder, uid, uid)
    return folder


def _written(folder: Path, chromium: str, uid: int | None) -> str:
    script = folder / "chromium"
    profile = shlex.quote(str(folder / "profile"))
    become = [] if uid is None else [sys.executable, "-I", "-c", _BECOME, str(uid)]
    command = shlex.join([*become, os.path.abspath(chromium)])
    text = _SCRIPT.format(needless=",".join(NEEDLESS), profile=profile, chromium=command)
    script.write_text(text)
    script.chmod(0o700)
    if os.access(script, os.X_OK):
        return str(script)
    if uid is not None:
        raise PermissionError(f"programs cannot be run from {folder}; set TMPDIR to another folder")
    logger.warning("programs cannot be run from %s: Chromium takes more memory; set TMPDIR to another folder", folder)
    return chromium


def _without_openers(folder: Path) -> str:
    """Make a folder of programs that do nothing, to be found before those that would open a desktop's programs."""
    programs = _made(folder / "programs")
    programs.chmod(0o755)
    nothing = shutil.which("true") or "/bin/true"
    for name in _OPENERS:
        (programs / name).symlink_to(nothing)
    return str(programs)
