"""Parse command lines of npx and uvx: which words select the program, and which are the program's arguments.

A command line with an option that is not listed here is not parsed, and its launcher is executed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

_EXACT = r"\d+\.\d+\.\d+(?:[-+.][0-9A-Za-z.+-]+)?"
_PINNED = {
    "npx": re.compile(rf"(?:@[^/@]+/)?[^/@]+@{_EXACT}"),
    "uvx": re.compile(r"[\w.-]+(?:\[[\w.,-]+\])?(?:===?|@)\d[\w.!+-]*"),
}
_PACKAGES = {"npx": {"-p", "--package"}, "uvx": {"--from", "--with"}}
_WITH_VALUE = {
    "npx": {"--prefix", "--cache", "--registry", "--userconfig", "--loglevel"},
    "uvx": {"-p", "--python", "-i", "--index-url", "--extra-index-url", "--index", "--default-index", "--cache-dir"},
}
_FLAGS = {
    "npx": {
        *("-y", "--yes", "--no", "--no-install", "--offline", "--prefer-offline", "--prefer-online"),
        *("-q", "--quiet", "-s", "--silent"),
    },
    "uvx": {"-q", "--quiet", "--offline", "--native-tls", "--system-certs", "--no-progress", "--no-config"},
}
# A folder with one of these is where npx or uvx reads its settings or looks for installed packages.
_PROJECT_FILES = {
    "npx": ("package.json", "node_modules", ".npmrc"),
    "uvx": ("pyproject.toml", "uv.toml", ".python-version"),
}
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh"})
_LAUNCHERS = frozenset({"npx", "npm", "npx-cli.js", "npm-cli.js", "uv", "uvx"})


@dataclass(frozen=True)
class LauncherCommand:
    """A parsed command line.

    head: the launcher with its options, up to the program's name. arguments: those of the program.
    is_pinned: every package is named with an exact version.
    """

    launcher: str
    head: tuple[str, ...]
    arguments: tuple[str, ...]
    is_pinned: bool

    def project_folder(self, cwd: str) -> str:
        """Return the folder that the head's meaning depends on in `cwd`; "" if it means the same everywhere."""
        if any(os.sep in word and not word.startswith(("/", "@")) for word in self.head[1:]):
            return cwd  # the head has a relative path
        folder = cwd
        while not any(os.path.exists(os.path.join(folder, name)) for name in _PROJECT_FILES[self.launcher]):
            folder, below = os.path.dirname(folder), folder
            if folder == below:
                return ""
        return folder


def parse_launcher_command(argv: Sequence[str]) -> LauncherCommand | None:
    """Parse the command line of a launcher; None for every other command."""
    launcher = os.path.basename(argv[0])
    first = 1
    if launcher == "uv" and list(argv[1:3]) == ["tool", "run"]:
        launcher, first = "uvx", 3
    if launcher not in _FLAGS:
        return None
    packages: list[str] = []
    at = first
    while at < len(argv) and argv[at].startswith("-") and argv[at] != "--":
        option, is_joined, value = argv[at].partition("=")
        if option in _FLAGS[launcher] and not is_joined:
            at += 1
            continue
        if not is_joined:
            at += 1
            value = argv[at] if at < len(argv) else ""
        if option in _PACKAGES[launcher]:
            packages.append(value)
        elif option not in _WITH_VALUE[launcher] or (option == "--prefix" and not os.path.isabs(value)):
            return None
        at += 1
    at += argv[at : at + 1] == ["--"]
    if at >= len(argv):
        return None
    named = [argv[at]] if not packages or (launcher == "uvx" and not _has_source(argv[first:at])) else []
    is_pinned = all(_PINNED[launcher].fullmatch(package) for package in [*packages, *named])
    return LauncherCommand(launcher, tuple(argv[: at + 1]), tuple(argv[at + 1 :]), is_pinned)


def _has_source(options: Sequence[str]) -> bool:
    """Whether `--from` names the program's package, so that the program's name is no package."""
    return any(option.partition("=")[0] == "--from" for option in options)


def is_launcher(argv: Sequence[str]) -> bool:
    """Whether a running process is a launcher, or the shell with which a launcher starts a program."""
    if not argv or argv[0].startswith(("npm ", "npx ")):  # npm overwrites its arguments with its own title
        return bool(argv)
    if os.path.basename(argv[0]) in _SHELLS and argv[1:2] == ["-c"]:
        return True
    return any(os.path.basename(word) in _LAUNCHERS for word in argv[:2])
