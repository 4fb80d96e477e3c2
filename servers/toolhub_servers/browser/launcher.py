"""The program that Playwright starts in place of Chromium: it changes two of the arguments, and becomes Chromium.

Playwright passes lists of its own, and of an argument that is given twice Chromium heeds the last. So what is to be
added to a list of Playwright's has to be added there, where its list is known.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
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


class Launcher:
    """How to start one Chromium, so that all it writes is in `folder`, which has to be there and empty."""

    def __init__(self, folder: Path, chromium: str) -> None:
        self.artifacts = _made(folder / "artifacts")
        """Where downloads are while they grow."""
        self.path = _written(folder, chromium)
        """What to run."""
        self.programs = _without_openers(folder)
        """A folder to be first on its PATH."""
        self.tmpdir = str(folder) if len(str(folder)) <= _LONGEST_TMPDIR else None
        """For its TMPDIR; None: the path is too long for the sockets in there."""


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder


def _written(folder: Path, chromium: str) -> str:
    script = folder / "chromium"
    profile = shlex.quote(str(folder / "profile"))
    text = _SCRIPT.format(needless=",".join(NEEDLESS), profile=profile, chromium=shlex.quote(os.path.abspath(chromium)))
    script.write_text(text)
    script.chmod(0o700)
    if os.access(script, os.X_OK):
        return str(script)
    logger.warning("programs cannot be run from %s: Chromium takes more memory; set TMPDIR to another folder", folder)
    return chromium


def _without_openers(folder: Path) -> str:
    """Make a folder of programs that do nothing, to be found before those that would open a desktop's programs."""
    programs = _made(folder / "programs")
    nothing = shutil.which("true") or "/bin/true"
    for name in _OPENERS:
        (programs / name).symlink_to(nothing)
    return str(programs)
