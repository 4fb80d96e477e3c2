"""Reads pin requests from `vllm_xargs`. Clients can send anything there, so invalid values are ignored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_SESSION_CHARS = 256
# ("session", id) or ("request", id), so that a session cannot have the key of a request.
PinKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PinRequest:
    """Keep this request's blocks. ttl: seconds after its end."""

    key: PinKey
    ttl: float


def pin_request(extra: Mapping[str, Any] | None, request_id: str, *, max_ttl: float) -> PinRequest | None:
    """The pin that a request asks for. A request that releases a session is never pinned."""
    if not extra or "release_session" in extra:
        return None
    ttl = _seconds(extra.get("pin_ttl_s"))
    key = _session_key(extra["session_id"]) if "session_id" in extra else ("request", request_id)
    return PinRequest(key, min(ttl, max_ttl)) if key is not None and min(ttl, max_ttl) > 0 else None


def released_key(extra: Mapping[str, Any] | None) -> PinKey | None:
    """The session whose pin a request ends."""
    return _session_key(extra["release_session"]) if extra and "release_session" in extra else None


def session_key(extra: Mapping[str, Any] | None) -> PinKey | None:
    """The session that a request belongs to."""
    return _session_key(extra["session_id"]) if extra and "session_id" in extra else None


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    try:
        seconds = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def _session_key(session: object) -> PinKey | None:
    is_name = isinstance(session, str) and 0 < len(session) <= MAX_SESSION_CHARS and session.isprintable()
    return ("session", str(session)) if is_name else None
