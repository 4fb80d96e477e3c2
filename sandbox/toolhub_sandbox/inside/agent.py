"""The agent, the first process of a sandbox: serves the hub's requests, and ends the sandbox when the hub is gone.

It never runs the model's code. It is process 1 of a pid namespace: when it exits, the kernel kills all others. It
hands code to the worker (`worker_manager`) and commands to their shims (`commands`), and moves files itself.
"""

from __future__ import annotations

import errno
import os
import selectors
import signal
import socket
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from toolhub_sandbox.inside.commands import CommandRunner
from toolhub_sandbox.inside.frames import CHUNK_BYTES, RECEIVE_BYTES, BadFrame, FrameBuffer, Head, encode
from toolhub_sandbox.inside.processes import children_by_parent, descendants, end_all
from toolhub_sandbox.inside.worker import MAX_CODE
from toolhub_sandbox.inside.worker_manager import CodeRun, WorkerManager

_MAX_REQUEST = MAX_CODE
# poll waits for at most 24 days; a timeout may be longer.
_LONGEST_WAIT_S = 3600.0


SHM_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """What the hub decides for one sandbox; see `SandboxProfile` for the sizes."""

    id: str
    output_bytes: int
    env: dict[str, str] = field(default_factory=dict)
    network: str = "none"
    memory_bytes: int | None = None
    """Per process; None where a cgroup bounds the whole sandbox."""
    processes: int | None = None
    home_bytes: int = 0
    tmp_bytes: int = 0
    shm_bytes: int = SHM_BYTES
    files: int = 4096
    """Open files of one process."""
    proxy_port: int = 0
    home: str = "/home/user"
    uid: int | None = None
    """A uid of the machine that only this sandbox has; None: it shares one with other sandboxes."""


class Agent:
    """Serves one socket until it ends."""

    def __init__(
        self,
        hub: socket.socket,
        options: SandboxOptions,
        *,
        become_worker: Callable[[], None],
        become_shell: Callable[[], None],
    ) -> None:
        self._hub = hub
        # Not epoll: the kernel counts epoll watches for each uid, and code in the sandbox could use up all of them.
        self._selector = selectors.PollSelector()
        self._requests = FrameBuffer(_MAX_REQUEST)
        common: dict[str, Any] = {
            "output_bytes": options.output_bytes,
            "answer": self._answer,
            "watch": self._watch,
            "unwatch": self._unwatch,
            "abort": self._abort,
        }
        self._python = WorkerManager(**common, become_worker=become_worker, end_orphans=self._end_orphans)
        self._commands = CommandRunner(**common, become_shell=become_shell)
        self._files = Files(options.home, map_home=options.home != "/home/user")
        self._woken, waker = socket.socketpair()
        self._woken.setblocking(False)
        waker.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self._waker = waker

    def serve(self) -> NoReturn:
        """Answer requests until the hub closes the socket, or dies."""
        self._python.start()
        self._watch(self._hub.fileno(), self._on_request)
        self._watch(self._woken.fileno(), self._reap)
        self._answer({"event": "ready"}, [])
        while True:
            for key, _ in self._selector.select(self._seconds_left()):
                if key.fd in self._selector.get_map():  # an earlier callback may have closed it
                    key.data()
            now = time.monotonic()
            self._python.on_time(now)
            self._commands.on_time(now)

    def _seconds_left(self) -> float | None:
        deadlines = [d for d in (self._python.next_deadline, self._commands.next_deadline) if d is not None]
        return min(max(0.0, min(deadlines) - time.monotonic()), _LONGEST_WAIT_S) if deadlines else None

    def _watch(self, descriptor: int, callback: Callable[[], object]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def _unwatch(self, descriptor: int) -> None:
        try:
            self._selector.unregister(descriptor)
        except (KeyError, ValueError):
            pass  # it was removed when its stream ended

    def _answer(self, head: Head, parts: list[bytes]) -> None:
        try:
            self._hub.sendall(encode(head, *parts))
        except OSError:
            os._exit(0)  # the hub is gone

    def _abort(self, why: str) -> None:
        self._answer({"event": "lost", "why": why}, [])
        os._exit(1)

    def _end_orphans(self) -> None:
        """End the processes that a dead worker and finished commands left behind."""

        def find() -> list[int]:
            children = children_by_parent()
            orphans = [pid for pid in children.get(os.getpid(), []) if pid not in self._commands.running]
            return [pid for orphan in orphans for pid in (orphan, *descendants(orphan, children))]

        end_all(find)
        self._reap()

    def _reap(self) -> None:
        try:
            while self._woken.recv(4096):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._python.on_exit(pid, status)
            self._commands.on_exit(pid, status)

    def _on_request(self) -> None:
        try:
            data = self._hub.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
            messages = self._requests.feed(data)
        except BlockingIOError:
            return
        except (OSError, BadFrame):
            os._exit(1)
        if not data:
            os._exit(0)
        for head, parts in messages:
            self._dispatch(head, parts)

    def _dispatch(self, head: Head, parts: list[bytes]) -> None:
        match head["op"]:
            case "exec":
                self._python.submit(CodeRun(head["id"], parts[0], head["timeout"]))
            case "command":
                self._commands.start(head["id"], parts[0], head["timeout"], self._cwd(head["cwd"]), head["env"])
            case "cancel":
                self._python.cancel(head["of"])
                self._commands.cancel(head["of"])
            case "interrupt":
                self._python.interrupt()
            case "usage":
                self._answer({"id": head["id"]} | usage(), [])
            case _:
                reply, data = self._files.handle(head, parts)
                self._answer({"id": head["id"]} | reply, data)

    def _cwd(self, cwd: str) -> str:
        return self._files.path(cwd.encode(errors="replace"))


def usage() -> Head:
    """Return CPU seconds, resident bytes and number of the processes in the sandbox, from /proc."""
    ticks = os.sysconf("SC_CLK_TCK")
    page = os.sysconf("SC_PAGE_SIZE")
    own = os.times()
    cpu, rss, count = own.children_user + own.children_system, 0, 1
    for pid in descendants(os.getpid()):
        try:
            with open(f"/proc/{pid}/stat", "rb") as stat:
                fields = stat.read().rpartition(b")")[2].split()
        except OSError:
            continue
        cpu += (int(fields[11]) + int(fields[12])) / ticks
        rss += int(fields[21]) * page
        count += 1
    return {"cpu_s": round(cpu, 3), "rss_bytes": rss, "processes": count}


# --- files ------------------------------------------------------------------------------------------------------------

# Links and `..` need no care here: this process sees nothing but the sandbox.
MAX_OPEN = 16
_PROBLEMS = {
    errno.ENOENT: "missing",
    errno.ENOTDIR: "missing",
    errno.EISDIR: "directory",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
    errno.ENOSPC: "no space",
    errno.EDQUOT: "no space",
    errno.EFBIG: "no space",
    errno.ENXIO: "not a file",
}

Reply = tuple[Head, list[bytes]]


@dataclass(eq=False)
class OpenFile:
    descriptor: int
    path: str
    temporary: str = ""


@dataclass(eq=False)
class Files:
    """The files that the hub reads or writes now, by the numbers that the hub gave them."""

    home: str
    """The folder that is /home/user for the sandbox. Relative paths start there."""
    map_home: bool = False
    """Whether /home/user must be translated to `home`: without namespaces there is no such folder."""
    _open: dict[int, OpenFile] = field(default_factory=dict)

    def handle(self, head: Head, parts: list[bytes]) -> Reply:
        """Serve one request. A failure becomes part of the reply."""
        try:
            if head["op"] == "open":
                return self._open_file(head["file"], self.path(parts[0]), head["mode"]), []
            file = self._open[head["file"]]
            if head["op"] == "read":
                return {}, [os.read(file.descriptor, CHUNK_BYTES)]
            if head["op"] == "write":
                return self._write(file, parts[0]), []
            return self._close(head["file"], keep=head["keep"]), []
        except OSError as exc:
            return {"problem": _PROBLEMS.get(exc.errno or 0, "other"), "reason": exc.strerror or str(exc)}, []
        except KeyError:
            return {"problem": "other", "reason": "the file is not open"}, []
        except (ValueError, RecursionError) as exc:  # a null byte in the path; too many folders or links
            return {"problem": "other", "reason": str(exc)}, []

    def path(self, path: bytes) -> str:
        text = os.path.normpath(os.path.join("/home/user", os.fsdecode(path)))
        if self.map_home and (text == "/home/user" or text.startswith("/home/user/")):
            text = self.home + text.removeprefix("/home/user")
        return text

    def _open_file(self, number: int, path: str, mode: str) -> Head:
        if len(self._open) >= MAX_OPEN:
            return {"problem": "other", "reason": f"{MAX_OPEN} files are open already"}
        self._open[number] = _open_for_reading(path) if mode == "r" else _open_for_writing(path)
        return {}

    def _write(self, file: OpenFile, data: bytes) -> Head:
        while data:
            data = data[os.write(file.descriptor, data) :]
        return {}

    def _close(self, number: int, *, keep: bool) -> Head:
        file = self._open.pop(number)
        os.close(file.descriptor)
        if file.temporary:
            if keep:
                os.replace(file.temporary, file.path)
            else:
                os.unlink(file.temporary)
        return {}


def _open_for_reading(path: str) -> OpenFile:
    # A FIFO would block for ever without O_NONBLOCK.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        raise OSError(errno.EISDIR if stat.S_ISDIR(kind) else errno.ENXIO, "not a regular file")
    return OpenFile(descriptor, path)


def _open_for_writing(path: str) -> OpenFile:
    """Open a temporary file beside the target. It is renamed at the end, so readers see the old file or the new one."""
    path = os.path.realpath(path)
    if os.path.isdir(path):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if os.path.lexists(path) and not os.path.isfile(path):
        raise OSError(errno.ENXIO, "not a regular file")
    folder, name = os.path.split(path)
    try:
        os.makedirs(folder, exist_ok=True)
    except FileExistsError as exc:
        raise OSError(errno.EEXIST, "there is a file where its folder should be") from exc
    if len(os.fsencode(name)) > os.pathconf(folder, "PC_NAME_MAX"):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    temporary = os.path.join(folder, f".{os.urandom(8).hex()}.part")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    if os.path.exists(path):
        os.fchmod(descriptor, stat.S_IMODE(os.stat(path).st_mode))
    return OpenFile(descriptor, path, temporary)
