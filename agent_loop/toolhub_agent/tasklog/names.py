"""Times and file names as MiroFlow's tools look for them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

MAIN = "main"
"""The main agent's conversation; a sub-agent's is `<name>_<n>`."""

# MiroFlow writes this zone's time wherever it runs.
_ZONE = timezone(timedelta(hours=8))
# A file name may have 255 bytes; the rest of it takes less than 40.
_LONGEST_ID = 200
# A task's id comes from a data set; it must not name another folder, nor end a line in a listing.
_UNSAFE = re.compile(r"[/\\\x00-\x1f\x7f]")


def clock_text(seconds: float) -> str:
    """``YYYY-mm-dd HH:MM:SS`` in UTC+8. seconds: since the epoch."""
    return datetime.fromtimestamp(seconds, UTC).astimezone(_ZONE).strftime("%Y-%m-%d %H:%M:%S")


def full_id(task_id: str, *, attempt: int | None = None, format_retry: int | None = None) -> str:
    """The id of one try, by which MiroFlow's runner finds what to resume: ``<id>_attempt-<n>_format-retry-<k>``."""
    if attempt is None and format_retry is None:
        return task_id
    return f"{task_id}_attempt-{attempt or 1}_format-retry-{format_retry or 0}"


def file_stem(full: str, start_time: str) -> str:
    """``task_<id>_<YYYY-mm-dd-HH-MM-SS>``, without a suffix."""
    safe = _UNSAFE.sub("-", full).encode("utf-8", "replace")[:_LONGEST_ID].decode("utf-8", "ignore")
    return f"task_{safe}_{re.sub('[ :.]', '-', start_time)}"
