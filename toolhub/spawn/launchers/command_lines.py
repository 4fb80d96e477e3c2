"""Command lines of npx and uvx: which words say what to run, and which are the server's own.

Only options whose meaning is known here are read; with any other one the command is none of ours.
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
# What makes a folder the place that npx or uvx reads its settings from, or looks for installed packages in.
_MARKS = {
    "npx": ("package.json", "node_modules", ".npmrc"),
    "uvx": ("pyproject.toml", "uv.toml", ".python-version"),
}
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh"})
_LAUNCHERS = frozenset({"npx", "npm", "npx-cli.js", "npm-cli.js", "uv", "uvx"})


@dataclass(frozen=True)
class Launch:
    """A command line taken apart.

    head: the launcher with its options, up to the name of what is run. arguments: what it is given.
    is_pinned: every package is named with an exact version.
    """

    launcher: str
    head: tuple[str, ...]
    arguments: tuple[str, ...]
    is_pinned: bool

    def anchor(self, cwd: str) -> str:
        """Return the folder that decides what the head means in `cwd`; "" when it means the same everywhere."""
        if any(os.sep in word and not word.startswith(("/", "@")) for word in self.head[1:]):
            return cwd  # a path that starts there
        folder = cwd
        while not any(os.path.exists(os.path.join(folder, mark)) for mark in _MARKS[self.launcher]):
            folder, below = os.path.dirname(folder), folder
            if folder == below:
                return ""
        return folder


def launch_of(argv: Sequence[str]) -> Launch | None:
    """Take the command line of a launcher apart; None for everything else."""
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
    return Launch(launcher, tuple(argv[: at + 1]), tuple(argv[at + 1 :]), is_pinned)


def _has_source(options: Sequence[str]) -> bool:
    """Whether `--from` says where the program comes from, so that its own name is not a package."""
    return any(option.partition("=")[0] == "--from" for option in options)


def is_launcher(argv: Sequence[str]) -> bool:
    """Whether a running process is a launcher, or the shell that one starts a program with."""
    if not argv or argv[0].startswith(("npm ", "npx ")):  # npm writes its command over its arguments
        return bool(argv)
    if os.path.basename(argv[0]) in _SHELLS and argv[1:2] == ["-c"]:
        return True
    return any(os.path.basename(word) in _LAUNCHERS for word in argv[:2])
