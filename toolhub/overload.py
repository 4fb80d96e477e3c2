"""How an answer says that its server wants fewer calls.

It comes from outside, so only what makes sense is believed. A tool's text is not looked at: anybody may write "429".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from toolhub.model import Json

META = "toolhub/retry_after"
"""In a result's `_meta`: seconds for which the server wants no call; 0 or null when it does not know."""

# A mistaken header must not close a server for everybody.
LONGEST_S = 60.0
REFUSALS = frozenset({429, 503})

# Where a session keeps a JSON-RPC error.
_ERROR_META = "toolhub/jsonrpc_error"
_NAMES = ("retry_after", "retryAfter")
_SAID = re.compile(
    r"\b(?:HTTP|status|status code)\W{0,3}(?:429|503)\b|\b429 Too Many Requests\b|\b503 Service Unavailable\b",
    re.IGNORECASE,
)
# Of a message: it begins with what went wrong.
_LOOKED_AT_CHARS = 500


@dataclass(frozen=True, slots=True)
class OverloadSignal:
    """retry_after: seconds for which the server wants no call, at most `LONGEST_S`; None when it did not say."""

    retry_after: float | None = None

    def meta(self) -> Json:
        """What a result's `_meta` has to have in it."""
        return {META: self.retry_after or 0}


def overload_in(result: Json) -> OverloadSignal | None:
    """What a wire result says about the load of its server; None when it says nothing."""
    meta = result.get("_meta")
    if not isinstance(meta, dict):
        return None
    if META in meta and (said := _read(meta[META])) is not None:
        return said
    error = meta.get(_ERROR_META)
    return overload_in_error(error) if isinstance(error, dict) else None


def overload_in_error(error: Json) -> OverloadSignal | None:
    """What a JSON-RPC error says: by its data, its code, or the HTTP status that its message begins with."""
    data = error.get("data")
    if isinstance(data, dict):
        for name in _NAMES:
            if name in data and (said := _read(data[name])) is not None:
                return said
        if _is_refusal(data.get("status")):
            return OverloadSignal()
    if _is_refusal(error.get("code")):
        return OverloadSignal()
    message = error.get("message")
    return OverloadSignal() if isinstance(message, str) and _SAID.search(message[:_LOOKED_AT_CHARS]) else None


def overload_in_http(status: int, retry_after: str) -> OverloadSignal | None:
    """What an HTTP answer says. retry_after: its header, or nothing."""
    return OverloadSignal(_bounded(parse_retry_after(retry_after.strip()))) if status in REFUSALS else None


def overload_signal(seconds: float | None) -> OverloadSignal:
    """What to tell of a service that asked for so many seconds of quiet, or that did not say how many."""
    return OverloadSignal(_bounded(seconds))


def parse_retry_after(text: str, now: datetime | None = None) -> float | None:
    """Read a Retry-After, seconds or an HTTP date (RFC 9110 section 10.2.3); None for anything else."""
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError, LookupError, TypeError):  # what its parser raises for one nonsense or another
        return None
    if moment.tzinfo is None:  # "-0000"
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


def _read(value: Any) -> OverloadSignal | None:
    """Null and 0 say only that it is too much; what is no time says nothing at all."""
    if value is None:
        return OverloadSignal()
    if isinstance(value, str):
        value = parse_retry_after(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:  # NaN is not
        return None
    return OverloadSignal(_bounded(value))


def _bounded(seconds: float | None) -> float | None:
    return float(min(seconds, LONGEST_S)) if seconds is not None and seconds > 0 else None


def _is_refusal(status: Any) -> bool:
    return isinstance(status, int) and status in REFUSALS
