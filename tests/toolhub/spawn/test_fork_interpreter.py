"""Which commands are Python programs that can be forked, and what they come to."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from toolhub.spawn.fork.python_command import Program, parse_python_command

pytestmark = [pytest.mark.quick, pytest.mark.skipif(sys.platform != "linux", reason="nothing is forked elsewhere")]

PYTHON = sys.executable


def found(*argv: str, cwd: str = "/", path: str = "/nowhere") -> Program | str:
    return parse_python_command(argv, env={"PATH": path}, cwd=cwd)


@pytest.mark.parametrize(
    ("argv", "flags", "module", "args"),
    [
        (["-m", "pkg.server", "--port", "-m"], [], "pkg.server", ["--port", "-m"]),
        (["-mpkg"], [], "pkg", []),
        (["-Im", "pkg", "x"], ["-I"], "pkg", ["x"]),
        (["-u", "-W", "error", "-Xutf8", "-OO", "-m", "pkg"], ["-u", "-W", "error", "-Xutf8", "-OO"], "pkg", []),
    ],
)
def test_a_module_is_found_behind_flags(argv: list[str], flags: list[str], module: str, args: list[str]) -> None:
    program = found(PYTHON, *argv)
    assert isinstance(program, Program)
    assert (program.interpreter, program.module, program.args) == ((PYTHON, *flags), module, tuple(args))
    assert program.own == {module.partition(".")[0]} and program.script is None


def test_a_script_is_found_with_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("")
    program = found(PYTHON, "-s", "server.py", "-c", cwd=str(tmp_path))
    assert isinstance(program, Program)
    assert program.command_line() == [PYTHON, "-s", "server.py", "-c"] and program.own == frozenset()


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ([PYTHON, "-c", "pass"], "'-c'"),
        ([PYTHON, "-i", "x.py"], "'-i'"),
        ([PYTHON, "-X", "importtime", "-m", "x"], "'-X'"),
        ([PYTHON], "from stdin"),
        ([PYTHON, "-"], "from stdin"),
        ([PYTHON, "-m"], "'-m'"),
        ([PYTHON, "no-such-file.py"], "not a file of Python source"),
        ([PYTHON, "/"], "not a file of Python source"),
        (["/bin/sh", "-c", "true"], "not a Python interpreter"),
        (["/no/such/python"], "was not found"),
        (["python3"], "was not found"),
    ],
)
def test_what_cannot_be_forked_has_a_reason(argv: list[str], why: str) -> None:
    assert why in str(found(*argv))


@pytest.mark.parametrize(
    "first_line",
    [
        f"#!{PYTHON}",
        f"#!{PYTHON} -I",
        "#!/usr/bin/env python3",
        f"#!/bin/sh\n'''exec' \"{PYTHON}\" \"$0\" \"$@\"\n' '''",
    ],
)
def test_a_console_script_is_its_package(first_line: str, tmp_path: Path) -> None:
    script = tmp_path / "my-server"
    script.write_text(f"{first_line}\nimport sys\nfrom my_server.cli import main\nsys.exit(main())\n")
    (tmp_path / "python3").symlink_to(PYTHON)
    script.chmod(0o755)
    program = found("my-server", "--x", path=str(tmp_path))
    assert isinstance(program, Program)
    assert program.script == str(script) and program.args == ("--x",) and program.own == {"my_server"}


@pytest.mark.parametrize("text", ["#!/bin/sh\n", "#!/usr/bin/env -S python3 -u\n", "#!python -a -b\n", "import os\n"])
def test_a_script_of_something_else_is_not_forked(text: str, tmp_path: Path) -> None:
    script = tmp_path / "tool"
    script.write_text(text)
    assert isinstance(found(str(script)), str)


def test_an_archive_of_python_code_is_not_forked(tmp_path: Path) -> None:
    (tmp_path / "app.pyz").write_bytes(b"PK\x03\x04")
    assert "not a file of Python source" in str(found(PYTHON, str(tmp_path / "app.pyz")))


def test_a_script_in_an_interpreters_place_is_told_from_one(tmp_path: Path) -> None:
    shim = tmp_path / "python3"
    shim.write_text('#!/bin/sh\nexec /usr/bin/python3 "$@"\n')
    shim.chmod(0o755)
    why = str(found("python3", "-m", "x", path=str(tmp_path)))
    assert f"{shim} is a script that chooses an interpreter; give the full path" in why
