"""How much memory processes use, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path

from toolhub.spawn.supervisor import descendants


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
