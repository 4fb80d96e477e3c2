"""A private hub of this process: started on first use, shared by all its managers, ended with the process.

The hub ends when its stdin ends. This process and its forked children hold the other end, and the kernel closes it even
if they are killed. The socket lies in a directory that only this user can enter.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from typing import IO

from toolhub.client import HubUnreachable
from toolhub.miroflow.hub_command import ADVICE, HubCommand, environment_for

# A cold start imports the SDK and a web server: a second on an idle machine, many on one that starts 50 agents.
START_S = 30.0
# How long the end of the process waits for its hub to end the tools; whatever is left ends without us.
_SHUTDOWN_TIMEOUT_S = 5.0
# The kernel closes a dead process's socket before its parent can ask for the exit status.
_REPORT_S = 1.0
_SHOWN_LINES = 15
# Unix socket paths have 107 bytes; a deep TMPDIR would leave no room.
_LONGEST_TMPDIR = 70


@dataclass(eq=False)
class PrivateHub:
    """A running hub process. `url` is where it listens."""

    url: str
    directory: str
    child: subprocess.Popen[bytes]
    started_by: int = field(default_factory=os.getpid)

    @property
    def is_alive(self) -> bool:
        """A forked child cannot wait for the hub process, so there it is always True."""
        return self.started_by != os.getpid() or self.child.poll() is None

    def has_died(self) -> bool:
        """`is_alive` for one that does not answer: a killed process may take a moment to be reported."""
        if self.started_by != os.getpid():
            return True
        try:
            self.child.wait(_REPORT_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self, timeout: float) -> None:
        """Close our end of its stdin, and wait until it is gone if it is our child."""
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self.started_by != os.getpid():
            return
        try:
            self.child.wait(timeout)
        except subprocess.TimeoutExpired:
            return  # it is busy ending tools, and removes its directory itself
        shutil.rmtree(self.directory, ignore_errors=True)


class _Registry:
    """The hubs of this process, one per way of starting them."""

    def __init__(self) -> None:
        self._hubs: dict[tuple[HubCommand, ...], PrivateHub] = {}
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self._close_all)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held the old one

    def url(self, commands: list[HubCommand]) -> str:
        """Return the address of the running hub, starting one if there is none. Blocks.

        Raises HubUnreachable with what every command said.
        """
        key = tuple(commands)
        with self._lock:
            hub = self._hubs.get(key)
            if hub is not None and not hub.is_alive:
                hub.close(_SHUTDOWN_TIMEOUT_S)
                hub = None
            if hub is None:
                hub = self._hubs[key] = _start_any(commands)
            return hub.url

    def replace(self, url: str) -> bool:
        """Remove the hub at `url` if it has ended; return True if `url()` will then start another one."""
        with self._lock:
            for key, hub in list(self._hubs.items()):
                if hub.url == url:
                    if not hub.has_died():
                        return False
                    del self._hubs[key]
                    hub.close(_SHUTDOWN_TIMEOUT_S)
            return True

    def _close_all(self) -> None:
        deadline = time.monotonic() + _SHUTDOWN_TIMEOUT_S
        for hub in self._hubs.values():
            hub.close(max(0.0, deadline - time.monotonic()))


private_hubs = _Registry()


def _start_any(commands: list[HubCommand]) -> PrivateHub:
    problems = []
    for command in commands:
        try:
            return _start(command)
        except HubUnreachable as exc:
            problems.append(str(exc))
    raise HubUnreachable(f"{'; '.join(problems)}\n{ADVICE}")


def _start(command: HubCommand) -> PrivateHub:
    """Start a hub and wait until it is ready. Raises HubUnreachable with its last stderr lines."""
    shown = " ".join(command)
    base = tempfile.gettempdir()
    directory = tempfile.mkdtemp(prefix="toolhub-", dir=base if len(base) <= _LONGEST_TMPDIR else "/tmp")  # noqa: S108
    path = os.path.join(directory, "hub.sock")
    with tempfile.TemporaryFile() as log:
        try:
            child = _spawn([*command, "serve", "--private", "--uds", path], command, log)
        except OSError as exc:
            os.rmdir(directory)
            raise HubUnreachable(f"cannot run the hub `{shown}`: {exc}") from exc
        hub = PrivateHub(f"unix://{path}", directory, child)
        if _wait_ready(child):
            return hub
        state = f"exited with {child.returncode}" if _has_ended(child) else f"was not ready within {START_S:g} s"
        child.kill()
        hub.close(_SHUTDOWN_TIMEOUT_S)
        raise HubUnreachable(f"the hub `{shown}` {state}{_last_lines(log)}")


def _spawn(line: list[str], command: HubCommand, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        line,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,  # a file without a name: the hub never blocks on it, and it needs no removal
        env=environment_for(command, os.environ),
        start_new_session=True,  # Ctrl-C is for the agent; the hub ends with it, not before it
        bufsize=0,
    )


def _wait_ready(child: subprocess.Popen[bytes]) -> bool:
    assert child.stdout is not None
    deadline = time.monotonic() + START_S
    poller = select.poll()
    poller.register(child.stdout, select.POLLIN)
    said = b""
    while b"ready" not in said.split(b"\n")[:-1]:
        left = deadline - time.monotonic()
        if left <= 0 or not poller.poll(left * 1000):
            return False
        chunk = os.read(child.stdout.fileno(), 1024)
        if not chunk:
            return False
        said += chunk
    return True


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    # Its stdout ends a moment before it does.
    try:
        child.wait(_SHUTDOWN_TIMEOUT_S if child.stdout and select.select([child.stdout], [], [], 0)[0] else 0)
    except subprocess.TimeoutExpired:
        return False
    return True


def _last_lines(log: IO[bytes]) -> str:
    size = os.fstat(log.fileno()).st_size
    tail = os.pread(log.fileno(), 16_384, max(0, size - 16_384)).decode(errors="replace")
    lines = tail.strip().splitlines()[-_SHOWN_LINES:]
    return "; its last lines:\n" + "\n".join(f"    {line}" for line in lines) if lines else " and said nothing"
