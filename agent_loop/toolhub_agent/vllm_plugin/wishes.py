"""What a request asks for in its `vllm_xargs`. Anybody may send anything there: what is no wish is ignored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LONGEST_SESSION = 256
# ("session", id) or ("request", id): no session can be named like a request.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Wish:
    """Keep this request's blocks. ttl: seconds from its end."""

    key: Key
    ttl: float


def pin_wish(extra: Mapping[str, Any] | None, request_id: str, *, max_ttl: float) -> Wish | None:
    """The pin that a request asks for. One that releases a session is never pinned."""
    if not extra or "release_session" in extra:
        return None
    ttl = _seconds(extra.get("pin_ttl_s"))
    key = _session_key(extra["session_id"]) if "session_id" in extra else ("request", request_id)
    return Wish(key, min(ttl, max_ttl)) if key is not None and min(ttl, max_ttl) > 0 else None


def released_key(extra: Mapping[str, Any] | None) -> Key | None:
    """The session whose pin a request ends."""
    return _session_key(extra["release_session"]) if extra and "release_session" in extra else None


def session_key(extra: Mapping[str, Any] | None) -> Key | None:
    """The session a request belongs to."""
    return _session_key(extra["session_id"]) if extra and "session_id" in extra else None


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    try:
        seconds = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def _session_key(session: object) -> Key | None:
    is_name = isinstance(session, str) and 0 < len(session) <= LONGEST_SESSION and session.isprintable()
    return ("session", str(session)) if is_name else None
