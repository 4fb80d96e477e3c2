"""Recognise commands that run a Python program.

It recognises `python [flags] -m module ...`, `python [flags] script ...`, and a script whose first line names a Python
(`pip` writes such console scripts). Other commands are not forked; the result then says why.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

_PYTHON = re.compile(r"python(\d(\.\d+)?)?$")
# Flags that change an interpreter from its start. A zygote is started with them. With -c, -i, -v, -x and all others
# there is no program to fork, or the interpreter prints something at its start.
_FLAGS, _FLAGS_WITH_VALUE = frozenset("BEIOPRSbqsu"), frozenset("WX")
_NOISY_OPTIONS = ("importtime", "presite", "showrefcount")
# pip writes this when the interpreter's path is too long for a first line: sh runs it, Python reads it as a string.
_POLYGLOT = re.compile(rb"#!\s*/bin/sh\n'''exec' \"?(/[^\n\"]+?)\"? \"\$0\" \"\$@\"\n")
_HEAD_BYTES, _SCRIPT_BYTES = 512, 1 << 16


@dataclass(frozen=True)
class Program:
    """An interpreter with its flags, and the program that it runs."""

    interpreter: tuple[str, ...]
    """argv[0] as the interpreter would see it, then its flags."""
    module: str | None
    script: str | None
    """Exactly one of `module` and `script` is set."""
    args: tuple[str, ...]
    """The program's arguments: `sys.argv[1:]`."""
    own: frozenset[str] = frozenset()
    """Top-level packages of the program itself. Their import-time code runs in every process."""
    title: str = ""
    """The process name that the kernel shows: the name of the executed file."""

    @property
    def name(self) -> str:
        return f"-m {self.module}" if self.module is not None else str(self.script)

    def command_line(self) -> list[str]:
        """Return the interpreter's arguments, `sys.orig_argv`."""
        run = ["-m", self.module] if self.module is not None else [self.script or ""]
        return [*self.interpreter, *run, *self.args]


def parse_python_command(argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> Program | str:
    """Return the Python program that a command runs, or the reason why it cannot be forked.

    env, cwd (absolute): the command is looked up with them.
    """
    if sys.platform != "linux":
        return "forking an interpreter is safe only on Linux"
    path = _executable(argv[0], env, cwd)
    if path is None:
        return f"{argv[0]!r} was not found"
    head = _head(path)
    if head.startswith(b"\x7fELF"):
        if not _PYTHON.match(os.path.basename(argv[0])):
            return f"{argv[0]!r} is not a Python interpreter"
        return _parse(argv[0], argv[1:], cwd, title=os.path.basename(argv[0]))
    return _console_script(path, head, argv, env, cwd)


def _executable(command: str, env: Mapping[str, str], cwd: str) -> str | None:
    if "/" in command:
        path = os.path.join(cwd, command)
        return path if os.path.isfile(path) else None
    return shutil.which(command, path=env.get("PATH", os.defpath))


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""


def _console_script(path: str, head: bytes, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> Program | str:
    interpreter = _shebang(head)
    if not interpreter or not _PYTHON.match(os.path.basename(interpreter[0])):
        if _PYTHON.match(os.path.basename(argv[0])):  # the shims of pyenv and asdf
            return f"{path} is a script that chooses an interpreter; give the full path of the interpreter itself"
        return f"{argv[0]!r} is not a Python program"
    found = _executable(interpreter[0], env, cwd)
    if found is None or not _head(found).startswith(b"\x7fELF"):
        return f"the first line of {argv[0]!r} names {interpreter[0]!r}, which is not a Python interpreter"
    # The kernel passes the interpreter the path that was executed.
    script = path if "/" not in argv[0] else argv[0]
    parsed = _parse(interpreter[0], [*interpreter[1:], script, *argv[1:]], cwd, title=os.path.basename(script))
    return replace(parsed, own=_entry_point(path)) if isinstance(parsed, Program) else parsed


def _shebang(head: bytes) -> list[str]:
    """Return the interpreter and its flag from a first line; empty if it cannot be parsed."""
    if polyglot := _POLYGLOT.match(head):
        return [os.fsdecode(polyglot[1])]
    line = head.partition(b"\n")[0]
    if not line.startswith(b"#!"):
        return []
    words = os.fsdecode(line[2:]).split()
    if words and os.path.basename(words[0]) == "env":
        words = words[1:]
        return words if len(words) == 1 else []
    return words if len(words) <= 2 else []  # the kernel passes all that follows as one argument


def _entry_point(path: str) -> frozenset[str]:
    """Return the package that a generated console script calls. That package is the program itself."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read(_SCRIPT_BYTES))
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    sources = [node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return frozenset(source.partition(".")[0] for source in sources) - sys.stdlib_module_names


def _parse(command: str, args: Sequence[str], cwd: str, *, title: str) -> Program | str:
    flags: list[str] = []
    rest = list(args)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        parsed = _flag(word, rest)
        if parsed is None:
            return f"an interpreter started with {word!r} cannot be forked"
        words, module = parsed
        flags += words
        if module is not None:
            program = Program((command, *flags), module, None, tuple(rest), title=title)
            return replace(program, own=frozenset({module.partition(".")[0]}))
    if not rest or rest[0] == "-":
        return "a Python that reads its program from stdin cannot be forked"
    program = Program((command, *flags), None, rest[0], tuple(rest[1:]), title=title)
    return program if _is_source(os.path.join(cwd, rest[0])) else f"{rest[0]!r} is not a file of Python source"


def _flag(word: str, rest: list[str]) -> tuple[list[str], str | None] | None:
    """Parse one word of flags: the words to start an interpreter with, and the module if it ends in -m.

    None: a flag that is not supported.
    """
    for position, letter in enumerate(word[1:], start=1):
        if letter == "m":
            before = [word[:position]] if position > 1 else []
            module = word[position + 1 :] or (rest.pop(0) if rest else "")
            return (before, module) if module else None
        if letter in _FLAGS_WITH_VALUE:
            value = [] if word[position + 1 :] else rest[:1]
            del rest[: len(value)]
            text = word[position + 1 :] or "".join(value)
            return ([word, *value], None) if text and not text.startswith(_NOISY_OPTIONS) else None
        if letter not in _FLAGS:
            return None
    return ([word], None) if len(word) > 1 else None


def _is_source(path: str) -> bool:
    """Whether it is a script. Python runs a directory, an archive and byte code in other ways."""
    return os.path.isfile(path) and not path.endswith(".pyc") and not _head(path).startswith(b"PK")
