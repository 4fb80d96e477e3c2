"""Child processes: finding and ending whole trees of them (from /proc as the caller sees it), reading their output."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping

# A tree that forks faster than it is killed is a fork bomb. After these rounds the caller must end the whole sandbox.
_ROUNDS, _PAUSE_S = 100, 0.002
_OOM_SCORE = 500


def children_by_parent() -> dict[int, list[int]]:
    """Return every process of this pid namespace by its parent's pid."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:
                    fields = stat.read().rpartition(b")")[2].split()
            except OSError:
                continue
            # A process whose first thread has ended looks like a zombie; the 18th field says that threads are left.
            if fields[0] != b"Z" or int(fields[17]) > 1:
                found.setdefault(int(fields[1]), []).append(int(name))
    return found


def descendants(root: int, children: Mapping[int, list[int]] | None = None) -> list[int]:
    """Return every living process below `root`, parents first. children: a fresh result of `children_by_parent()`."""
    children = children_by_parent() if children is None else children
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def count_threads(uid: int) -> int:
    """Return how many threads a uid has, as RLIMIT_NPROC counts them."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                pass  # it has ended
    return count


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def raise_oom_score() -> None:
    """When memory runs out, let the kernel kill this process and its children before the agent."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(_OOM_SCORE))
    except OSError:
        pass  # the kernel then chooses by size


def kill_tree(root: int) -> bool:
    """SIGKILL everything below `root`, a subreaper, then `root`. Returns False if new processes kept appearing."""
    kill(root, signal.SIGSTOP)  # it must go on adopting orphans, but start nothing new
    is_over = end_all(lambda: descendants(root))
    kill(root)
    return is_over


def end_all(find: Callable[[], list[int]]) -> bool:
    """SIGKILL all that `find` finds, until it finds nothing. Returns False if new processes kept appearing.

    First all are stopped: a killed process makes room for another fork below the limit, a stopped one does not.
    """
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        found = set(find())
        if not found:
            return True
        is_complete = found <= stopped
        for pid in found:
            kill(pid, signal.SIGKILL if is_complete else signal.SIGSTOP)
        stopped = found
        time.sleep(_PAUSE_S)
    for pid in stopped:
        kill(pid)
    return False


# --- reading what a process writes ------------------------------------------------------------------------------------

# As much as a pipe holds by default.
_PIPE_BYTES = 64 << 10


class Capture:
    """One output stream of a program. Keeps the first `limit` bytes, counts the rest; never blocks the program."""

    def __init__(self, limit: int) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.dropped = 0
        self.has_ended = False
        self._limit = limit
        self._kept = bytearray()

    def read(self) -> bool:
        """Read what is there, at most as much as a pipe holds. Returns False at the end of the stream."""
        try:
            data = os.read(self.reader, _PIPE_BYTES)
        except BlockingIOError:
            return True
        room = self._limit - len(self._kept)
        self._kept += data[:room]
        self.dropped += max(0, len(data) - room)
        self.has_ended = not data
        return bool(data)

    def drain(self) -> None:
        """Read what was written before this call: at most as much as the pipe holds, even while others write."""
        before = -1
        for _ in range(4):
            size = len(self._kept) + self.dropped
            if size == before:
                break
            before = size
            self.read()

    def take(self) -> tuple[bytes, int]:
        """Return what was kept and how many bytes were dropped since the last time."""
        kept, dropped = bytes(self._kept), self.dropped
        self._kept.clear()
        self.dropped = 0
        return kept, dropped

    def close_writer(self) -> None:
        os.close(self.writer)

    def close(self) -> None:
        os.close(self.reader)
