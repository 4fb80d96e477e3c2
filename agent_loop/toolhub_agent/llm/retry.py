"""When to try again: full jitter, Retry-After, deadlines. Pure."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

# Of the pauses before the second, third, ... attempt: anything between 0 and this, doubled each time.
FIRST_S = 1.0
LONGEST_S = 30.0
# Added at random to what a server asked for, so that all who were told the same do not come back together.
SPREAD_S = 0.5


def is_passing(status: int) -> bool:
    """Whether the same request may be answered otherwise soon (RFC 9110 section 15, RFC 8470 for 425)."""
    return status in (408, 409, 425, 429) or status >= 500


def pause(attempt: int, *, retry_after: float | None = None) -> float:
    """Seconds to wait after the attempt of that number, the first being 1."""
    if retry_after is not None:
        return retry_after + random.uniform(0, SPREAD_S)  # noqa: S311
    return random.uniform(0, min(LONGEST_S, FIRST_S * 2 ** min(attempt - 1, 16)))  # noqa: S311


def parse_retry_after(text: str | None, now: datetime | None = None) -> float | None:
    """Seconds from a Retry-After, a number or an HTTP date (RFC 9110 section 10.2.3); None for anything else."""
    text = (text or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError, LookupError, TypeError):  # what its parser raises for one nonsense or another
        return None
    if moment.tzinfo is None:  # "-0000"
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())
