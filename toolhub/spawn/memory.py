"""How much memory processes use, by the kernel's count."""

from __future__ import annotations

import os
from pathlib import Path

from toolhub.spawn.supervisor import descendants


def memory_below(pid: int) -> int:
    """Return the bytes that all processes below `pid` use. Each of n processes that share a page counts 1/n of it.

    Returns 0 if the system does not say.
    """
    return sum(proportional_bytes(member) for member in descendants(pid))


def proportional_bytes(pid: int) -> int:
    """Return the process's proportional set size, in bytes.

    If that is not readable (another user's process), return its resident size.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
