"""The program that Playwright starts in place of Chromium. It changes two arguments and then executes Chromium.

Under root it first becomes an ordinary user. Chromium's own sandbox does not work for root, and code that escapes from
the sandbox must not be root.

Playwright passes lists of its own, and Chromium uses the last of equal arguments. So an addition to such a list must be
made here, where Playwright's list is known.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import stat
import sys
from pathlib import Path

from toolhub.scratch import temporary_folders
from toolhub_servers.browser.errors import BrowserUnavailable

logger = logging.getLogger(__name__)

# Chromium opens these as hidden pages in every window, for suggestions below the address bar, which is not used here.
# They take two processes of about 20 MB each for every task.
NEEDLESS = ("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup")
# A link such as mailto: makes Chromium start one of these programs without asking.
_OPENERS = ("xdg-open", "xdg-email", "gio", "kde-open", "gnome-open")
# A socket's path has at most 108 bytes on Linux and 104 elsewhere. Chromium adds about 45 to its TMPDIR, and that is a
# folder in a scratch folder, with 36 more.
_LONGEST_PARENT = 22

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
    """How to start one Chromium so that it writes only into `folder`, which must exist and be empty."""

    def __init__(self, folder: Path, chromium: str, *, uid: int | None = None) -> None:
        """uid: the user that Chromium runs as; None: the hub's. Raises OSError."""
        self.uid = uid
        self.artifacts = _made(folder / "artifacts", uid)
        """The folder of downloads that are not complete."""
        self.home = str(folder / "profile")
        """Its HOME, if that is not the hub's."""
        if uid is not None:
            _made(folder / "profile", uid)
            # The folder stays root's: a user who can write there could replace the script that root runs.
            folder.chmod(0o711)
        self.path = _written(folder, chromium, uid)
        """The program to run."""
        self.programs = _without_openers(folder)
        """A folder to put first on its PATH."""
        self.tmpdir = str(folder if uid is None else _made(folder / "t", uid))
        """Its TMPDIR."""


def find_parent(uid: int | None) -> Path:
    """Return the temporary folder in which Chromium's folder can be made. Raises BrowserUnavailable if none suits.

    uid: the user that Chromium runs as; None: the hub's.
    """
    problems = []
    for folder in temporary_folders():
        problem = _problem(folder, uid)
        if problem is None:
            return folder
        problems.append(f"{folder} ({problem})")
    raise BrowserUnavailable(f"no temporary folder suits Chromium: {', '.join(problems)}; set TMPDIR to another folder")


def _problem(folder: Path, uid: int | None) -> str | None:
    """Return why Chromium cannot use the folder, or None if it can."""
    path = folder.resolve()
    if len(os.fsencode(folder)) > _LONGEST_PARENT:
        return f"its path has more than {_LONGEST_PARENT} bytes, too many for the sockets that Chromium makes there"
    if uid is None:
        return None
    for each in (path, *path.parents):
        if not each.stat().st_mode & stat.S_IXOTH:
            return f"the hub is root, so Chromium runs as uid {uid}, which may not enter {each}"
    return None


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
    """Make a folder of programs that do nothing. They are found before those that would start a desktop's programs."""
    programs = _made(folder / "programs")
    programs.chmod(0o755)
    nothing = shutil.which("true") or "/bin/true"
    for name in _OPENERS:
        (programs / name).symlink_to(nothing)
    return str(programs)
