"""The interpreter that keeps state: takes code from the agent, runs it in `__main__`, answers with its displays."""

from __future__ import annotations

import ast
import builtins
import linecache
import os
import re
import signal
import socket
import sys
import traceback
import types
from typing import Any, NoReturn

from toolhub_sandbox.inside import display
from toolhub_sandbox.inside.display import MimeBundle, mime_bundle
from toolhub_sandbox.inside.frames import BadFrame, FrameBuffer, encode, receive

MAX_CODE = 64 << 20
MAX_DISPLAYS = 8 << 20
"""Bytes of all displays of one execution. A display that does not fit becomes a line that says so."""
MAX_SHOWN = 1000
"""The most displays of one execution, and the most MIME types of all of them together."""
# Longer than any name of a MIME type or an exception that is in use.
_MAX_KIND, _MAX_NAME = 100, 256
_MAX_TRACEBACK = 32 << 10
_SHELL_LINE = re.compile(r"^(\s*)(?:!|%(?=pip\b|cd\b|ls\b))(.*)$", re.MULTILINE)


class Worker:
    """One interpreter."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._buffer = FrameBuffer(MAX_CODE)
        self._shown: list[tuple[bool, dict[str, bytes]]] = []
        self._room, self._forms, self._unshown = MAX_DISPLAYS, MAX_SHOWN, 0
        self._number = 0
        self._pid = os.getpid()
        self._loop: Any = None
        self._main = types.ModuleType("__main__")
        self._main.__dict__.update(__builtins__=builtins, display=self.display)
        sys.modules["__main__"] = self._main
        display.on_figure.append(lambda bundle: self._show(bundle))

    def serve(self) -> NoReturn:
        """Run the code that arrives, until the agent is gone."""
        while True:
            try:
                head, (code,) = receive(self._channel, self._buffer)
            except (EOFError, OSError, BadFrame):
                os._exit(0)
            self._number = head["number"]
            failure = self._run(code.decode())
            if os.getpid() != self._pid:
                os._exit(failure is not None)  # the code forked a child, which reached the end of the cell
            shape = [[is_result, list(texts)] for is_result, texts in self._shown]
            parts = [text for _, texts in self._shown for text in texts.values()]
            try:
                self._channel.sendall(encode({"error": failure, "displays": shape}, *parts))
            except OSError:
                os._exit(0)

    def display(self, *values: object, **_: object) -> None:
        """Show values as a notebook does."""
        for value in values:
            self._show(mime_bundle(value))

    def _show(self, bundle: MimeBundle, *, is_result: bool = False) -> None:
        texts = {kind: text.encode(errors="replace") for kind, text in bundle.items() if len(kind) <= _MAX_KIND}
        size = sum(map(len, texts.values()))
        if len(texts) > self._forms:
            if not is_result:
                self._unshown += 1
                return
            texts, size = {"text/plain": texts["text/plain"]}, len(texts["text/plain"])
        if size > self._room:
            note = f"[not shown: {size} bytes; one execution may show {MAX_DISPLAYS}]"
            texts, size = {"text/plain": note.encode()}, 0
        self._room -= size
        self._forms -= len(texts)
        self._shown.append((is_result, texts))

    # --- running ----------------------------------------------------------------------------------------------------

    def _run(self, code: str) -> list[str] | None:
        """Run a piece of code. Return name, value and traceback of the exception that ended it; None without one."""
        self._shown = []
        self._room, self._forms, self._unshown = MAX_DISPLAYS, MAX_SHOWN, 0
        failure = None
        try:
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                self._execute(code)
            finally:
                signal.signal(signal.SIGINT, _ignore_interrupt)
        except BaseException as exc:
            failure = _describe(exc)
        if self._unshown:
            note = f"[{self._unshown} more not shown; one execution may show {MAX_SHOWN}]"
            self._shown.append((False, {"text/plain": note.encode()}))
        _flush()
        return failure

    def _execute(self, code: str) -> None:
        filename = f"<cell {self._number}>"
        tree, code = _parse(code, filename)
        linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
        last = None
        end = tree.body[-1] if tree.body else None
        if isinstance(end, ast.Expr) and not code.rstrip().endswith(";"):
            last = ast.Expression(end.value)
            del tree.body[-1]
        try:
            self._evaluate(tree, filename, "exec")
            if last is not None:
                self._show_result(self._evaluate(last, filename, "eval"))
        except KeyboardInterrupt:
            display.close_figures()  # drawing them could take longer than the grace period
            raise
        finally:
            display.show_figures()

    def _show_result(self, value: object) -> None:
        if value is not None:
            self._main.__dict__["_"] = value
            self._show(mime_bundle(value), is_result=True)
            _close_if_figure(value)

    def _evaluate(self, tree: ast.Module | ast.Expression, filename: str, mode: str) -> object:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        compiled = compile(tree, filename, mode, flags=flags, dont_inherit=True)
        value = eval(compiled, self._main.__dict__)  # noqa: S307
        if compiled.co_flags & 0x80:  # inspect.CO_COROUTINE: it awaits something
            return self._event_loop().run_until_complete(value)
        return value

    def _event_loop(self) -> Any:
        """Return the event loop. All cells share it, so that a cell can use what an earlier one opened."""
        if self._loop is None:
            import asyncio

            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop


def _ignore_interrupt(number: int, frame: object) -> None:
    """Ignore an interrupt that comes after the code has ended."""


def _parse(code: str, filename: str) -> tuple[ast.Module, str]:
    """Parse a cell. If it is not Python, turn its `!command` lines into calls, as a notebook does, and try again."""
    try:
        return ast.parse(code, filename), code
    except SyntaxError:
        changed = _SHELL_LINE.sub(lambda line: f"{line[1]}(__import__('os').system({line[2]!r}), None)[1]", code)
        if changed == code:
            raise
        try:
            return ast.parse(changed, filename), changed
        except SyntaxError:
            pass
        raise


def _describe(exc: BaseException) -> list[str]:
    """Return name, value and traceback, without our own frames."""
    trace = exc.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell"):
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(type(exc), exc, trace))
        value = str(exc)
    except BaseException as problem:  # a class of the user's whose __str__ fails
        value = f"<str() of it failed: {type(problem).__name__}>"
        text = f"{type(exc).__name__}: {value}\n"
    if len(text) > _MAX_TRACEBACK:
        half = _MAX_TRACEBACK // 2
        text = f"{text[:half]}\n[...]\n{text[-half:]}"
    return [type(exc).__name__[:_MAX_NAME], value[:_MAX_TRACEBACK], text]


def _close_if_figure(value: object) -> None:
    """Close a figure that was shown as the result, or the end of the cell would show it again."""
    pyplot, figure = sys.modules.get("matplotlib.pyplot"), sys.modules.get("matplotlib.figure")
    if pyplot is not None and figure is not None and isinstance(value, figure.Figure):
        pyplot.close(value)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: S110 - the code closed or replaced it; what it wrote is lost with it
            pass
