"""The hub's side of a zygote: starts it, asks it for sandboxes, receives its notices."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

import toolhub_sandbox
from toolhub_sandbox.errors import SandboxUnavailable
from toolhub_sandbox.inside.agent import SandboxOptions
from toolhub_sandbox.inside.zygote import ZygoteSettings

LIBRARY = Path(toolhub_sandbox.__file__).parents[1]
# Loading pandas and matplotlib takes seconds on a busy machine; more when matplotlib first builds its font cache.
START_S = 120.0
_EXIT_S = 5.0
_MAX_NOTICE = 1 << 20
NO_NAMESPACES_HINT = (
    "; this machine does not let the hub isolate (a container without user namespaces, or with a masked /proc?): allow "
    "that, or choose another sandbox.backend: bwrap, e2b, or subprocess, which does not isolate"
)
_SCRIPT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from toolhub_sandbox.inside.{module} import {function}; "
    "del sys.path[0]; {function}(*sys.argv[2:])"
)


def interpreter_command(python: str, module: str, function: str, *arguments: str) -> list[str]:
    """Return the command that runs `inside.<module>.<function>` in any interpreter, without its user's settings."""
    return [python, "-I", "-c", _SCRIPT.format(module=module, function=function), str(LIBRARY), *arguments]


def interpreter_environment() -> dict[str, str]:
    """Return an environment without the hub's variables: every program in a sandbox can read it."""
    return {"PATH": os.defpath, "LANG": "C.UTF-8", "TZ": os.environ.get("TZ", "")} | _no_blas_threads()


def _no_blas_threads() -> dict[str, str]:
    # A process with threads cannot be forked safely.
    return dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def interpreter_folders(python: str) -> list[str]:
    """Return the folders of an interpreter: installation and virtual environment. Raises SandboxUnavailable."""
    if python == sys.executable:
        return sorted({sys.prefix, sys.base_prefix, sysconfig.get_paths()["stdlib"]})
    script = "import sys, sysconfig, json; print(json.dumps([sys.version_info[:2], sys.prefix, sys.base_prefix]))"
    try:
        done = subprocess.run(
            [python, "-I", "-c", script], env=interpreter_environment(), capture_output=True, timeout=30, check=True
        )
        version, *folders = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as exc:
        raise SandboxUnavailable(f"sandbox.python: {python!r} cannot be run: {exc}") from exc
    if tuple(version) < (3, 11):
        raise SandboxUnavailable(f"sandbox.python: {python!r} is Python {version[0]}.{version[1]}; 3.11 is needed")
    return sorted(set(folders))


class ForkServer:
    """A running zygote. One task must run `listen()`."""

    def __init__(self, control: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self._control = control
        self._process = process
        self.is_ready = False
        self.has_uids = False
        """Whether it can give each sandbox a uid."""
        self.usage: dict[str, int] = {}
        """Bytes by sandbox, where the zygote watches memory."""
        self.listeners: list[Callable[[str], None]] = []
        """Called with a sandbox's id when one of its processes was killed for memory."""
        self.has_ended = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def memory_bytes(self) -> int:
        return sum(self.usage.values())

    async def spawn(self, options: SandboxOptions) -> socket.socket:
        """Ask for a sandbox and return the hub's end of its socket. Raises SandboxUnavailable."""
        ours, theirs = socket.socketpair()
        request = json.dumps(dataclasses.asdict(options)).encode()
        try:
            with theirs:
                while True:
                    try:
                        socket.send_fds(self._control, [request], [theirs.fileno()])
                        return ours
                    except BlockingIOError:
                        await anyio.wait_writable(self._control)
        except BaseException as exc:
            ours.close()
            if isinstance(exc, OSError | anyio.ClosedResourceError):
                raise SandboxUnavailable("the zygote of the profile has ended") from exc
            raise

    def stderr_tail(self) -> str:
        """Return nothing: a fork of the zygote reports its own errors."""
        return ""

    async def receive_notice(self) -> dict[str, Any] | None:
        """Return the zygote's next notice; None when it has ended or has sent something malformed."""
        while True:
            try:
                data = self._control.recv(_MAX_NOTICE)
            except BlockingIOError:
                await anyio.wait_readable(self._control)
                continue
            except OSError:
                return None
            return _parse_notice(data)

    async def listen(self) -> None:
        """Receive notices until the zygote ends."""
        while (notice := await self.receive_notice()) is not None:
            if "usage" in notice:
                self.usage = notice["usage"]
            elif "memory" in notice:
                for listener in self.listeners:
                    listener(notice["memory"])
        self.has_ended = True

    async def aclose(self) -> None:
        """End the zygote, and with it every sandbox it made; wait until its launcher has gone."""
        self.has_ended = True
        if not self.is_ready:
            # It is loading modules and would not look up before it has. First of all: a zygote that ends by itself
            # because of a closed connection takes it for the end of the hub, and its launcher removes the cgroups.
            self._process.kill()
        # Not closed yet: a task that waits for it must wake before the descriptor number is used again.
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        with anyio.move_on_after(_EXIT_S) as patience:
            await anyio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        if patience.cancelled_caught:
            self._process.kill()
            self._process.wait()
        self._control.close()


@asynccontextmanager
async def open_fork_server(python: str, settings: ZygoteSettings) -> AsyncIterator[ForkServer]:
    """Start a zygote and wait until it has loaded its modules. Raises SandboxUnavailable."""
    control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    hub = os.pidfd_open(os.getpid())
    control.setblocking(False)
    control.send(json.dumps(dataclasses.asdict(settings)).encode())
    try:
        process = subprocess.Popen(  # noqa: ASYNC220 - a fork and an exec; waiting for it is done elsewhere
            interpreter_command(python, "zygote", "main", str(theirs.fileno()), str(hub)),
            env=interpreter_environment(),
            pass_fds=[theirs.fileno(), hub],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    except OSError as exc:
        control.close()
        raise SandboxUnavailable(f"sandbox.python: {python!r} cannot be run: {exc.strerror}") from exc
    finally:
        theirs.close()
        os.close(hub)
    fork_server = ForkServer(control, process)
    try:
        await _wait_ready(fork_server, process, isolates=settings.isolation != "none")
        yield fork_server
    finally:
        with anyio.CancelScope(shield=True):
            await fork_server.aclose()
        if process.stderr is not None:
            process.stderr.close()


def _parse_notice(data: bytes) -> dict[str, Any] | None:
    """Read a notice; None if it is malformed. Without isolation, code in a sandbox could send one."""
    try:
        notice = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(notice, dict):
        return None
    usage = notice.get("usage", {})
    if not isinstance(usage, dict) or not all(type(size) is int for size in usage.values()):
        return None
    return notice if isinstance(notice.get("memory", ""), str) else None


async def _wait_ready(fork_server: ForkServer, process: subprocess.Popen[bytes], *, isolates: bool) -> None:
    notice: dict[str, Any] | None = {"failed": f"the zygote was not ready within {START_S:g} s"}
    with anyio.move_on_after(START_S):
        notice = await fork_server.receive_notice()
    if notice is not None and "ready" in notice:
        fork_server.is_ready = True
        fork_server.has_uids = notice.get("has_uids") is True
        return
    why = (notice or {}).get("failed") or await anyio.to_thread.run_sync(_stderr_tail, process)
    hint = NO_NAMESPACES_HINT if isolates and (notice or {}).get("is_refused") else ""
    raise SandboxUnavailable(f"no sandbox can be started: {why}{hint}")


def _stderr_tail(process: subprocess.Popen[bytes]) -> str:
    """Return the last line that a launcher wrote before it ended without a notice."""
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    try:
        code = process.wait(1)
    except subprocess.TimeoutExpired:
        return "the launcher closed its connection"
    lines = (process.stderr.read() or b"").decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"the launcher ended with {code}"
