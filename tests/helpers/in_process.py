"""Programs of ours, run in the process of the tests: a process of their own spends seconds with imports."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from toolhub_servers.__main__ import main as servers_main

Done = subprocess.CompletedProcess[str]


def run_main(
    main: Callable[[], None],
    argv: Sequence[str],
    *,
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
) -> Done:
    """Call the entry point of a program and return how it ended. env: instead of our own."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    code: Any = 0
    with (
        contextlib.chdir(folder or Path.cwd()),
        mock.patch.dict(os.environ, os.environ if env is None else env, clear=True),
        mock.patch("sys.argv", list(argv)),
        mock.patch("sys.stdin", io.StringIO(stdin)),
        contextlib.redirect_stdout(streams[0]),
        contextlib.redirect_stderr(streams[1]),
        _logging_restored(),
    ):
        try:
            main()
        except SystemExit as exc:
            code = exc.code or 0
    out, err = (stream.buffer.getvalue().decode() for stream in streams)
    return Done(list(argv), code, out, err)


def run_server(name: str, *options: str) -> Done:
    """Run `python -m toolhub_servers NAME options`, for what ends before it serves."""
    return run_main(servers_main, ["python -m toolhub_servers", name, *options])


@contextlib.contextmanager
def _logging_restored() -> Iterator[None]:
    """A program configures logging for its whole process."""
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    known = [root, *(each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger))]
    levels = [(each, each.level) for each in known]
    try:
        yield
    finally:
        root.handlers = handlers
        for each, level in levels:
            each.setLevel(level)
