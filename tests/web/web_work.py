"""Functions for the workers of the tests: a worker imports them from a module."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def spin() -> None:
    while True:
        pass


def spin_in_c() -> None:
    """One call of a C function that holds the interpreter for hours."""
    import re

    re.fullmatch("(a|a)*b", "a" * 60)


def hog(size_bytes: int) -> int:
    return len(bytearray(size_bytes))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def print_as_c_does() -> None:
    for descriptor in (1, 2):
        os.write(descriptor, b"warning " * 50_000)


def fail() -> None:
    raise ValueError("not a page")


def where() -> int:
    return os.getpid()


def say_where_and_spin(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    spin_in_c()


def meet(folder: str, others: int) -> int:
    """Return how many were here at once, once `others` have been here or a second has passed."""
    mine = Path(folder, str(os.getpid()))
    mine.touch()
    deadline = time.monotonic() + 1
    most = 0
    while time.monotonic() < deadline and most < others:
        most = max(most, len(list(Path(folder).iterdir())))
    mine.unlink(missing_ok=True)
    return most
