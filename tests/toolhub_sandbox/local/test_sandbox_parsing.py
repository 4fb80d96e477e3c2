"""Cells as notebooks have them: shell lines, and what the value of a cell is."""

from __future__ import annotations

import ast
import signal
import socket
import sys

import pytest
from toolhub_sandbox.inside import display
from toolhub_sandbox.inside.worker import Worker, _parse


def calls(code: str) -> list[str]:
    """The commands that a cell would give the shell."""
    tree, _ = _parse(code, "<cell>")
    found = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".system")
    ]
    return [ast.literal_eval(call.args[0]) for call in found]


@pytest.mark.parametrize(
    ("code", "commands"),
    [
        ("!ls -l", ["ls -l"]),
        ("%pip install x", ["pip install x"]),
        ("x = 1\n  \n!echo 'a' \"b\"\ny = 2", ["echo 'a' \"b\""]),
        ("if True:\n    !pwd\n", ["pwd"]),
        ("%ls\n!ls", ["ls", "ls"]),
        (r"!printf 'a\nb'", [r"printf 'a\nb'"]),
    ],
)
def test_lines_of_the_shell_become_calls(code: str, commands: list[str]) -> None:
    assert calls(code) == commands


@pytest.mark.parametrize("code", ["x = '''\n!ls\n'''", "a = 7\\\n%pip.x if 0 else 1", "'%ls'", "# !ls"])
def test_what_is_python_already_is_left_alone(code: str) -> None:
    assert calls("pip = None\n" + code) == []
    assert _parse(code, "<cell>")[1] == code


@pytest.mark.parametrize("code", ["%timeit 1", "!ls\n)", "def", "%pipe x"])
def test_what_is_no_python_even_then_is_told_as_it_was_written(code: str) -> None:
    with pytest.raises(SyntaxError) as caught:
        _parse(code, "<cell>")
    assert "os" not in str(caught.value.text)


class Cells:
    """A worker in this process; `run` returns what it showed and what ended it."""

    def __init__(self):
        self.channel, there = socket.socketpair()
        there.close()
        self.worker = Worker(self.channel)
        self._shown = []
        self.worker._show = self._note

    def _note(self, bundle, *, is_result=False):
        self._shown.append(bundle.get("text/plain"))

    def run(self, code):
        self._shown.clear()
        failure = self.worker._run(code)
        return list(self._shown), failure


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(display, "on_figure", [])
    monkeypatch.setattr(display, "show_figures", lambda: None)
    before = signal.getsignal(signal.SIGINT)
    cells = Cells()
    yield cells
    signal.signal(signal.SIGINT, before)
    cells.channel.close()
    if cells.worker._loop is not None:
        cells.worker._loop.close()


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("1 + 1", ["2"]),
        ("x = 1", []),
        ("None", []),
        ("1;", []),
        ("1;  \n", []),
        ("1\n2", ["2"]),
        ("'a;'", ["'a;'"]),
        ("", []),
        ("# only words", []),
        ("display(1, 'a')\n3", ["1", "'a'", "3"]),
        ("if True:\n    5", []),
    ],
)
def test_the_value_of_a_cell_is_that_of_its_last_expression(cells: Cells, code: str, shown: list[str]) -> None:
    assert cells.run(code) == (shown, None)


def test_the_last_value_has_a_name(cells: Cells) -> None:
    cells.run("6 * 7")
    assert cells.run("_ + 1") == (["43"], None)


def test_awaiting_works_at_the_top_and_the_loop_lives_on(cells: Cells) -> None:
    cells.run("import asyncio\nqueue = asyncio.Queue()\nawait queue.put('x')")
    assert cells.run("await queue.get()") == (["'x'"], None)
    assert cells.run("async def f():\n    return 5\n[await f() for _ in range(2)]") == (["[5, 5]"], None)


def test_a_cell_is_main(cells: Cells) -> None:
    assert cells.run("__name__")[0] == ["'__main__'"]
    cells.run("class A: pass")
    assert cells.run("import pickle\ntype(pickle.loads(pickle.dumps(A()))).__name__") == (["'A'"], None)


def test_a_very_long_traceback_keeps_its_ends(cells: Cells) -> None:
    _, (name, value, trace) = cells.run("raise ValueError('a' * 100_000 + 'end')")
    assert (name, len(value)) == ("ValueError", 32 << 10)
    assert len(trace) < 40_000
    assert trace.startswith("Traceback")
    assert "[...]" in trace
    assert trace.rstrip().endswith("end")


def test_an_error_whose_text_fails_is_told_all_the_same(cells: Cells) -> None:
    _, failure = cells.run("class E(Exception):\n    def __str__(self): raise RuntimeError\nraise E")
    assert failure[:2] == ["E", "<str() of it failed: RuntimeError>"]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("a\0b", "SyntaxError"),
        ("(" * 5000, "SyntaxError"),
        ("return 1", "SyntaxError"),
        ("'\\", "SyntaxError"),
    ],
)
def test_code_that_cannot_be_read_is_an_error_of_the_code(cells: Cells, code: str, name: str) -> None:
    shown, failure = cells.run(code)
    assert shown == []
    assert failure[0] in (name, "ValueError")  # a null character, before Python 3.11.4
