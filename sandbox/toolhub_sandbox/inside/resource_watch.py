"""Limits on memory and processes where there is no cgroup.

The zygote sees every process of its sandboxes. It adds up the memory of each sandbox, with its files and sockets. If a
sandbox has too much, the zygote kills its largest process, as the kernel would.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from toolhub_sandbox.inside.isolation import INODE_BYTES
from toolhub_sandbox.inside.processes import children_by_parent, descendants, end_all, kill

# Often enough that a sandbox cannot take much more than its limit, and normally no more than 2 % of a core.
_SHORTEST_S, _LONGEST_S, _SHARE = 0.2, 2.0, 0.02
# The agent, and shims of commands.
_SPARE_PROCESSES = 4
_RESIDENT = re.compile(rb"^(?:RssAnon|RssShmem|VmPTE):\s*(\d+) kB", re.MULTILINE)
_SOCKETS = re.compile(rb"^sockets: used (\d+)$", re.MULTILINE)
# What a socket can hold when its buffers have their default size (212,992 bytes; code cannot enlarge them, see
# `seccomp.build`): one full buffer, and the message that made it full.
SOCKET_BYTES = 320 << 10
# The agent's, and what ordinary programs have without sending through them.
_FREE_SOCKETS = 32


class ResourceWatch:
    """Checks the sandboxes of one zygote.

    memory_bytes: the limit of one sandbox; None: memory is not watched.
    processes: how many processes a sandbox may have; None: the kernel limits them.
    own_network: whether each sandbox has a network namespace, so that its sockets can be told from the host's.
    """

    def __init__(
        self,
        memory_bytes: int | None,
        notify: Callable[[dict[str, Any]], None],
        *,
        processes: int | None = None,
        own_network: bool = False,
    ) -> None:
        self._memory_bytes = memory_bytes
        self._processes = processes
        self._notify = notify
        self._pause_s = _SHORTEST_S
        self._next = 0.0
        self._reported: dict[str, int] = {}
        self._own_network = own_network
        self.file_systems: dict[str, list[int]] = {}
        """Descriptors of the file systems in memory, by the sandbox's name; closed by `forget()`."""

    @property
    def pause_ms(self) -> int | None:
        """How long the caller may wait before the next `check()`; None: for ever."""
        return None if self._memory_bytes is None else int(self._pause_s * 1000)

    def check(self, agents: Mapping[int, str]) -> None:
        """Check every sandbox if it is time. agents: name by the pid of its first process."""
        now = time.monotonic()
        if self._memory_bytes is None or now < self._next:
            return
        children = children_by_parent()
        usage = {}
        for agent, name in agents.items():
            if self._processes is not None and len(_tree(agent, children)) > self._processes + _SPARE_PROCESSES:
                _end_below(agent)
                continue
            sizes = {pid: self._own_bytes(pid) for pid in _tree(agent, children)}
            usage[name] = sum(sizes.values()) + self._file_bytes(name) + self._socket_bytes(agent)
            if usage[name] > self._memory_bytes:
                largest = max((pid for pid in sizes if pid != agent), key=sizes.__getitem__, default=agent)
                self._notify({"memory": name, "bytes": usage[name]})
                kill(largest)
        if usage != self._reported:
            self._reported = usage
            self._notify({"usage": usage})
        spent = time.monotonic() - now
        self._pause_s = min(max(_SHORTEST_S, spent / _SHARE), _LONGEST_S)
        self._next = now + self._pause_s

    def forget(self, name: str) -> None:
        """A sandbox has ended."""
        for descriptor in self.file_systems.pop(name, []):
            os.close(descriptor)

    def _file_bytes(self, name: str) -> int:
        """Return the bytes of a sandbox's files in memory, with the kernel's memory for each file."""
        found = 0
        for descriptor in self.file_systems.get(name, []):
            told = os.fstatvfs(descriptor)
            found += (told.f_blocks - told.f_bfree) * told.f_frsize + (told.f_files - told.f_ffree) * INODE_BYTES
        return found

    def _socket_bytes(self, agent: int) -> int:
        """Return what the sockets of a sandbox can hold at most, including sockets in flight and half-closed ones."""
        if not self._own_network:
            return 0
        try:
            with open(f"/proc/{agent}/net/sockstat", "rb") as file:
                found = _SOCKETS.search(file.read())
        except OSError:
            return 0
        return max(0, int(found[1]) - _FREE_SOCKETS) * SOCKET_BYTES if found else 0

    def _own_bytes(self, pid: int) -> int:
        """Return resident bytes and page tables of a process. Memory that processes share counts for each of them."""
        try:
            with open(f"/proc/{pid}/status", "rb") as file:
                return 1024 * sum(map(int, _RESIDENT.findall(file.read())))
        except OSError:
            return 0

    def kill_strays(self, agents: Mapping[int, str]) -> None:
        """End what sandboxes without a pid namespace left behind: our children that are not agents."""

        def find() -> list[int]:
            children = children_by_parent()
            strays = [pid for pid in children.get(os.getpid(), []) if pid not in agents]
            return [pid for stray in strays for pid in _tree(stray, children)]

        end_all(find)

    def kill_all(self, agents: Mapping[int, str]) -> None:
        for agent in agents:
            kill(agent)
            try:
                os.waitpid(agent, 0)
            except ChildProcessError:
                pass
        self.kill_strays({})


def _end_below(agent: int) -> None:
    """End everything below the agent of a fork bomb. The agent then reports that its worker has died."""
    end_all(lambda: _tree(agent, children_by_parent())[1:])


def _tree(root: int, children: Mapping[int, list[int]]) -> list[int]:
    return [root, *descendants(root, children)]
