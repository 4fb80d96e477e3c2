"""Read overload signals: an answer that asks for fewer calls, such as HTTP 429 or a `_meta` field.

Answers come from outside, so values that make no sense are ignored. The text of a tool's result is not read, because
any page that a tool returns may contain "429".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from toolhub.model import Json

META = "toolhub/retry_after"
"""In a result's `_meta`: the seconds for which the server wants no calls; 0 or null if it does not know."""

# A wrong header must not stop all calls to a server for longer.
LONGEST_S = 60.0
REFUSALS = frozenset({429, 503})

# Where a session keeps a JSON-RPC error.
_ERROR_META = "toolhub/jsonrpc_error"
_NAMES = ("retry_after", "retryAfter")
_STATUS_TEXT = re.compile(
    r"\b(?:HTTP|status|status code)\W{0,3}(?:429|503)\b|\b429 Too Many Requests\b|\b503 Service Unavailable\b",
    re.IGNORECASE,
)
# The status stands at the beginning of a message.
_STATUS_CHARS = 500


@dataclass(frozen=True, slots=True)
class OverloadSignal:
    """retry_after: seconds for which the server wants no call, at most `LONGEST_S`; None when it did not say."""

    retry_after: float | None = None

    def meta(self) -> Json:
        """Return the entries of a result's `_meta` that carry this signal."""
        return {META: self.retry_after or 0}


def overload_in(result: Json) -> OverloadSignal | None:
    """Return the overload signal of a wire result; None if it has none."""
    meta = result.get("_meta")
    if not isinstance(meta, dict):
        return None
    if META in meta and (signal := _read(meta[META])) is not None:
        return signal
    error = meta.get(_ERROR_META)
    return overload_in_error(error) if isinstance(error, dict) else None


def overload_in_error(error: Json) -> OverloadSignal | None:
    """Return the overload signal of a JSON-RPC error: in its data, its code, or the HTTP status in its message."""
    data = error.get("data")
    if isinstance(data, dict):
        for name in _NAMES:
            if name in data and (signal := _read(data[name])) is not None:
                return signal
        if _is_refusal(data.get("status")):
            return OverloadSignal()
    if _is_refusal(error.get("code")):
        return OverloadSignal()
    message = error.get("message")
    return OverloadSignal() if isinstance(message, str) and _STATUS_TEXT.search(message[:_STATUS_CHARS]) else None


def overload_in_http(status: int, retry_after: str) -> OverloadSignal | None:
    """Return the overload signal of an HTTP response. retry_after: its header; "" if it has none."""
    return OverloadSignal(_bounded(parse_retry_after(retry_after.strip()))) if status in REFUSALS else None


def overload_signal(seconds: float | None) -> OverloadSignal:
    """Return the signal of a service that asked for a pause of so many seconds; None: it did not say how long."""
    return OverloadSignal(_bounded(seconds))


def parse_retry_after(text: str, now: datetime | None = None) -> float | None:
    """Read a Retry-After, seconds or an HTTP date (RFC 9110 section 10.2.3); None for anything else."""
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError, LookupError, TypeError):  # what its parser raises for malformed dates
        return None
    if moment.tzinfo is None:  # "-0000"
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


def _read(value: Any) -> OverloadSignal | None:
    """Read a `retry_after` value. Null and 0 are signals without a time; a value that is no time is no signal."""
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
