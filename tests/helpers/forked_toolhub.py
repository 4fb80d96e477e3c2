"""The `toolhub` command in processes that are forked, because a process of its own spends a second with imports.

A fork server imports what a hub needs, once for all tests of a worker. It forks a process for each start. A second
process beside it waits for its end, because only a parent can.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from select import select
from typing import IO

PRELOADED = (
    *("toolhub.cli.app", "toolhub.cli.serve", "toolhub.hub", "toolhub.channel.builtin", "toolhub.spawn.fork.server"),
    *("toolhub_sandbox.sandboxes", "uvicorn", "uvloop"),
)
LARGEST_REQUEST = 1 << 18


class ForkedProcess:
    """A process that runs the command; it has what the tests use of `subprocess.Popen`."""

    def __init__(self, status: int) -> None:
        self._status = status
        self.pid = int(self._line())
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            piece = os.read(self._status, 1)
            assert piece, "the process that waits for it has ended"
            line += piece
        return line

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        if (code := self._wait(timeout)) is None:
            raise subprocess.TimeoutExpired("toolhub", timeout or 0)
        return code

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select([self._status], [], [], timeout)[0]:
            self.returncode = int(self._line())
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_toolhub(
    arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdin: int, stdout: int, stderr: int
) -> ForkedProcess:
    """Run `toolhub` with these arguments; its warnings are errors. The file descriptors stay the caller's."""
    status, told = os.pipe()
    try:
        request = json.dumps({"arguments": list(arguments), "env": dict(env), "cwd": str(cwd)}).encode()
        assert len(request) < LARGEST_REQUEST
        socket.send_fds(_fork_server(), [request], [stdin, stdout, stderr, told])
    finally:
        os.close(told)
    return ForkedProcess(status)


@contextmanager
def piped_toolhub(
    arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path, stderr: int = 2
) -> Iterator[ForkedProcess]:
    """The same with pipes at its stdin and stdout. Leaving closes them and kills it."""
    read, stdin = os.pipe()
    stdout, write = os.pipe()
    with open(stdin, "wb") as to, open(stdout, "rb") as back:
        try:
            process = start_toolhub(arguments, env=env, cwd=cwd, stdin=read, stdout=write, stderr=stderr)
        finally:
            os.close(read)
            os.close(write)
        process.stdin, process.stdout = to, back
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@functools.cache
def _fork_server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LARGEST_REQUEST)
    command = [sys.executable, "-W", "error", __file__, str(theirs.fileno())]
    subprocess.run(command, pass_fds=[theirs.fileno()], check=True)
    theirs.close()
    atexit.register(ours.close)  # which ends the fork server
    return ours


def _serve(requests: socket.socket) -> None:
    """Fork for each request until the tests have ended."""
    for name in PRELOADED:
        import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps those who wait
    while True:
        request, fds, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, 4)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            _start(json.loads(request), fds)
        for fd in fds:
            os.close(fd)


def _start(request: dict[str, object], fds: list[int]) -> None:
    """Fork the command, say its pid, wait for it, and say how it ended; as `subprocess` numbers it."""
    *standard, status = fds
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(status)
        for number, fd in enumerate(standard):
            os.dup2(fd, number)
        for fd in standard:
            os.close(fd)
        os._exit(_run(**request))  # type: ignore[arg-type]  # what start_toolhub() has sent
    for fd in (0, 1, 2, *standard):
        os.close(fd)
    os.write(status, f"{pid}\n".encode())
    _, ended = os.waitpid(pid, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)


def _run(arguments: list[str], env: dict[str, str], cwd: str) -> int:
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[1:1] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = ["toolhub", *arguments]
    code = 0
    try:
        runpy.run_module("toolhub", run_name="__main__", alter_sys=True)
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # no child of the tests, because they look for children that are left
    os.setsid()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        _serve(control)
