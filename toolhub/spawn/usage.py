"""What processes use, as the kernel counts it."""

from __future__ import annotations

import logging
import os
import resource
from pathlib import Path

from toolhub.spawn.supervisor import descendants

logger = logging.getLogger(__name__)


def memory_below(pid: int) -> int:
    """Bytes of everything below `pid`, a page that several processes share counted in parts; 0 where nobody tells."""
    return sum(proportional_bytes(member) for member in descendants(pid))


def proportional_bytes(pid: int) -> int:
    """The process's proportional set size, or what is resident where that is not to be had (another user's)."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def open_descriptors() -> int:
    """Descriptors of this process; 0 where nobody tells."""
    for directory in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(directory))
        except OSError:
            continue
    return 0


def usable_descriptors() -> int:
    """Nine tenths of the limit on open files: the rest is for clients' connections, logs and the like."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft * 9 // 10 if soft != resource.RLIM_INFINITY else 1 << 20


def raise_fd_limit() -> None:
    """A session costs four descriptors; the usual soft limit of 1024 would end a sweep at 250 sessions."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):
            logger.debug("the limit on open files stays at %d", soft)
