"""Processes without network, files or privileges that parse untrusted input, and the users that helpers of root run as.

These uids are unused on common systems (Debian policy 9.2.2). They differ from each other and from the uid of
sandboxes, because processes of one uid may send each other signals.
"""

from __future__ import annotations

from pathlib import Path

CONFINED_UID = 60_986
BROWSER_UID = 60_985


def uid_exists(uid: int) -> bool:
    """Whether root may become this user. In a user namespace there may be few others, or none."""
    try:
        rows = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:  # not Linux
        return True
    return any(int(first) <= uid < int(first) + int(count) for first, _, count in map(str.split, rows))
