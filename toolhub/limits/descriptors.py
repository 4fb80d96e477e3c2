"""File descriptors of this process: how many are open, how many may be."""

from __future__ import annotations

import logging
import os
import resource

logger = logging.getLogger(__name__)


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
