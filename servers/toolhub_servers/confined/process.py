"""A process that runs our own code on untrusted input: parsers of pages and documents, and SQLite.

A memory bug in a C library must not reach the hub. So this work runs in a process that has an empty environment, no
network, no other programs, no files of the host except the Python installation, bounded memory, and another uid if the
hub is root. It answers in JSON, never in pickles, and each answer is bounded in size and in time. `worker.py` is the
code inside the process.

A confined process ends with the hub, however the hub ends: its launcher, which never sees the input, waits for that.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from signal import Signals
from typing import Any

import toolhub_sandbox
from toolhub_sandbox.inside.frames import RECEIVE_BYTES, BadFrame, FrameBuffer, encode

import toolhub_servers

# An interpreter starts within 100 ms. The rest is for a busy machine.
START_S = 60.0
# The launcher has only to kill the process.
END_S = 10.0
# If the hub does not end a late call, the launcher does so after this time.
GRACE_S = 1.0
LARGEST_ANSWER = 64 << 20
_OWN = ("toolhub", "toolhub_runtime", "toolhub_servers", "toolhub_sandbox")
_SCRIPT = "import sys; sys.path[:0] = sys.argv[1:]; from toolhub_servers.confined.worker import main; main()"


class ConfinedError(Exception):
    """There is no answer."""


class NotConfined(ConfinedError):
    """This machine cannot start a process that is confined enough. The text says why and what to do."""


class ProcessDied(ConfinedError):
    """The process ended during the work and lost its memory. The text says how."""


class CallTimeout(ConfinedError):
    """There was no answer in time. The process was killed."""


class FunctionRaised(ConfinedError):
    """The function raised an exception. The process goes on. kind: the name of the exception's class."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.message = message


class ConfinedProcess:
    """One process. Methods block. Calls must not overlap. `kill` may be called from any thread at any time."""

    def __init__(self, *, code: str | None = None, writable: str | None = None, file_bytes: int = 0) -> None:
        """Start the process. Raises NotConfined.

        code: a folder or file of Python code that the process may read besides ours. writable: a folder that it may
        change. file_bytes: the largest file that it may write.
        """
        self._buffer = FrameBuffer(LARGEST_ANSWER)
        self._channel, theirs = socket.socketpair()
        library = [str(Path(package.__file__ or "").parents[1]) for package in (toolhub_servers, toolhub_sandbox)]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-X", "utf8", "-c", _SCRIPT, *library],
                    env={},
                    cwd="/",
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except OSError as exc:
            self._channel.close()
            raise NotConfined(f"{sys.executable} cannot be run: {exc.strerror}") from exc
        settings = {
            "path": [os.path.abspath(entry) for entry in sys.path],
            "folders": [*_code_folders(), *([code] if code else [])],
            "writable": writable,
            "file_bytes": file_bytes,
        }
        try:
            head, _ = self._exchange(encode({"settings": settings}), START_S)
        except ConfinedError as exc:
            raise NotConfined(f"a confined process did not start: {exc}") from exc
        if "failed" in head:
            self.close()
            raise NotConfined(f"no confined process can be started: {head['failed']}")
        self.isolation: frozenset[str] = frozenset(str(name) for name in head.get("isolation", ()))
        """How the process is confined: some of `namespaces`, `uid`, `seccomp`."""

    def __repr__(self) -> str:
        return f"<ConfinedProcess {self._process.pid}, {'ended' if self.has_ended else 'running'}>"

    @property
    def pid(self) -> int:
        """The id of the launcher, whose only child does the work."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._channel.fileno() < 0

    def call(self, function: Callable[..., Any], *args: Any, timeout: float, memory_bytes: int) -> Any:
        """Return `function(*args)`. Arguments and result are JSON values; arguments may also be bytes.

        function: of a module. timeout: seconds. memory_bytes: address space that the call may add to that of an idle
        process. Raises ProcessDied, CallTimeout, FunctionRaised.
        """
        if self.has_ended:
            raise ProcessDied("it has ended before")
        kinds = ["bytes" if isinstance(arg, bytes) else "json" for arg in args]
        parts = [arg if isinstance(arg, bytes) else json.dumps(arg).encode() for arg in args]
        head = {
            "module": function.__module__,
            "name": function.__qualname__,
            "kinds": kinds,
            "memory_bytes": memory_bytes,
            "most_ms": min(int((timeout + GRACE_S) * 1000), 1 << 30),
        }
        answer, values = self._exchange(encode(head, *parts), timeout)
        if "raised" in answer:
            raise FunctionRaised(str(answer["raised"])[:100], str(answer.get("message"))[:10_000])
        try:
            return json.loads(values[0])
        except (ValueError, IndexError, RecursionError) as exc:
            self.close()
            raise ProcessDied("it was killed: its answer cannot be read") from exc

    def kill(self) -> None:
        """End the process without waiting for it. A running call raises ProcessDied."""
        try:
            self._channel.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already

    def close(self) -> int:
        """End the process, wait for its end, and return its exit status. Idempotent."""
        self._channel.close()
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _exchange(self, message: bytes, timeout: float) -> tuple[dict[str, Any], list[bytes]]:
        deadline = time.monotonic() + timeout
        try:
            self._channel.settimeout(max(timeout, 0.001))
            self._channel.sendall(message)
            while True:
                self._channel.settimeout(max(deadline - time.monotonic(), 0.001))
                data = self._channel.recv(RECEIVE_BYTES)
                if not data:
                    raise ConnectionResetError
                if answers := self._buffer.feed(data):
                    return answers[0]
        except TimeoutError as exc:
            self.close()
            raise CallTimeout(f"no answer within {timeout:g} s") from exc
        except BadFrame as exc:
            self.close()
            raise ProcessDied(f"it was killed: {exc} came from it") from exc
        except OSError as exc:
            raise ProcessDied(_how(self.close())) from exc


def folder_of_code(function: Callable[..., Any]) -> str | None:
    """Return the folder of a function's package if it is not one of ours, else None."""
    name = function.__module__.partition(".")[0]
    if name == toolhub_servers.__name__:
        return None
    file = sys.modules[name].__file__ or ""
    return os.path.dirname(file) if os.path.basename(file) == "__init__.py" else file


def _code_folders() -> list[str]:
    """The interpreter, installed packages and our own. Not the folder of the program, which may contain secrets."""
    installed = [entry for entry in sys.path if os.path.basename(entry) in ("site-packages", "dist-packages")]
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    own = [folder for name in _OWN if (spec := find_spec(name)) for folder in spec.submodule_search_locations or ()]
    interpreter = [sys.prefix, sys.base_prefix, sysconfig.get_paths()["stdlib"]]
    found = {os.path.abspath(entry) for entry in (*interpreter, *installed, *named, *own)}
    return sorted(entry for entry in found if os.path.exists(entry) and entry != "/")


def _how(status: int) -> str:
    """What an exit status of the launcher says about the process."""
    number = -status if status < 0 else status - 128
    try:
        return f"it was ended by {Signals(number).name}"
    except ValueError:
        return f"it ended with status {status}"
