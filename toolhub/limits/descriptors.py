"""File descriptors of this process: how many are open, and how many may be open."""

from __future__ import annotations

import logging
import os
import resource

logger = logging.getLogger(__name__)


def open_descriptors() -> int:
    """Return the number of open descriptors; 0 if the system does not say."""
    for directory in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(directory))
        except OSError:
            continue
    return 0


def usable_descriptors() -> int:
    """Return nine tenths of the limit on open files. The rest is for connections of clients, logs and the like."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft * 9 // 10 if soft != resource.RLIM_INFINITY else 1 << 20


def raise_fd_limit() -> None:
    """Raise the soft limit on open files. A session needs four descriptors, so the usual 1024 allow only 250."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):
            logger.debug("the limit on open files stays at %d", soft)
