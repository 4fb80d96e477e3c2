"""Functions for the workers of the tests: a worker imports them from a module."""

from __future__ import annotations

import ctypes
import os
import pickle
import socket
import time
from pathlib import Path
from typing import Any

from toolhub_sandbox.inside.frames import encode

TO_HUB = 0
calls = 0


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
    ctypes.string_at(0)


def print_as_c_does() -> None:
    for descriptor in (1, 2):
        os.write(descriptor, b"warning " * 50_000)


def fail() -> None:
    raise ValueError("not a page")


def count() -> int:
    """How often it was called in this process."""
    global calls
    calls += 1
    return calls


def span() -> tuple[float, float]:
    """When this began and ended, on a clock that all processes share."""
    start = time.monotonic()
    time.sleep(0.2)
    return start, time.monotonic()


def environment() -> dict[str, str]:
    return dict(os.environ)


def refused_socket(family: int) -> bool:
    try:
        socket.socket(family, socket.SOCK_DGRAM).close()
    except OSError:
        return True
    return False


def refused_processes() -> list[str]:
    refused = []
    try:
        if os.fork() == 0:
            os._exit(0)
    except OSError:
        refused.append("fork")
    try:
        os.execv("/bin/true", ["true"])
    except PermissionError:
        refused.append("exec")
    return refused


def identity() -> tuple[list[int], str]:
    """All uids and gids, and the capabilities that it may take."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return [*os.getresuid(), *os.getresgid()], status["CapPrm"].strip()


def read(path: str) -> str:
    return Path(path).read_text()


def write(path: str) -> str:
    Path(path).write_text("text")
    return path


class Exploit:
    def __init__(self, proof: str) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.proof),)


def answer_with_a_pickle(proof: str) -> str:
    """Answer as a parser would that does not run our code any more."""
    os.write(TO_HUB, encode({}, pickle.dumps(Exploit(proof))))
    return ""


def answer_without_end() -> str:
    os.write(TO_HUB, b"\xff" * 1024)
    return ""
