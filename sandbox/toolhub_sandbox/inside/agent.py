"""The first process of a sandbox: serves the hub's requests and ends everything when the hub is gone.

It runs no code of the model's. In a pid namespace it is process 1: when it exits the kernel kills all others.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from toolhub_sandbox.inside.commands import Commands
from toolhub_sandbox.inside.files import Files
from toolhub_sandbox.inside.frames import RECEIVE, BadFrame, FrameBuffer, Head, encode
from toolhub_sandbox.inside.interpreter import Interpreter, Run
from toolhub_sandbox.inside.processes import children_by_parent, descendants, end_all
from toolhub_sandbox.inside.worker import MAX_CODE

_MAX_REQUEST = MAX_CODE
# poll takes no more than 24 days at once, and a timeout may be as long as it likes.
_LONGEST_WAIT_S = 3600.0


SHM_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Options:
    """What one sandbox is given by the hub; see `SandboxProfile` for the sizes."""

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
    """A uid of this machine that nothing else has; None: it shares one with other sandboxes."""


class Agent:
    """Serves one socket until it ends."""

    def __init__(
        self,
        hub: socket.socket,
        options: Options,
        *,
        become_worker: Callable[[], None],
        become_shell: Callable[[], None],
    ) -> None:
        self._hub = hub
        # Not epoll: the kernel counts what is watched for each uid, and code in the sandbox could use all of it up.
        self._selector = selectors.PollSelector()
        self._requests = FrameBuffer(_MAX_REQUEST)
        common: dict[str, Any] = {
            "output_bytes": options.output_bytes,
            "answer": self._answer,
            "watch": self._watch,
            "unwatch": self._unwatch,
            "give_up": self._give_up,
        }
        self._python = Interpreter(**common, become_worker=become_worker, make_room=self._end_orphans)
        self._commands = Commands(**common, become_shell=become_shell)
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
                if key.fd in self._selector.get_map():  # an earlier callback may have ended its stream
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
            pass  # its end was seen before

    def _answer(self, head: Head, parts: list[bytes]) -> None:
        try:
            self._hub.sendall(encode(head, *parts))
        except OSError:
            os._exit(0)  # the hub is gone

    def _give_up(self, why: str) -> None:
        self._answer({"event": "lost", "why": why}, [])
        os._exit(1)

    def _end_orphans(self) -> None:
        """End what a dead interpreter and finished commands left behind."""

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
            data = self._hub.recv(RECEIVE, socket.MSG_DONTWAIT)
            messages = self._requests.feed(data)
        except BlockingIOError:
            return
        except (OSError, BadFrame):
            os._exit(1)
        if not data:
            os._exit(0)
        for head, parts in messages:
            self._do(head, parts)

    def _do(self, head: Head, parts: list[bytes]) -> None:
        match head["op"]:
            case "exec":
                self._python.submit(Run(head["id"], parts[0], head["timeout"]))
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
    """CPU seconds, resident bytes and number of the processes in the sandbox, as /proc has them."""
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
