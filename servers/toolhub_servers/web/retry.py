"""What may be sent again, and when: pure rules."""

from __future__ import annotations

import random

from toolhub_servers.web.errors import BadStatus, Unreachable

# Of a backoff: the first, the longest, and at most so much more at random, so that many do not come back together.
INITIAL_S = 0.25
LONGEST_S = 8.0
JITTER_S = 0.5


def is_passing(status: int) -> bool:
    """Whether the same request may be answered otherwise soon (RFC 9110 section 15, RFC 8470 for 425)."""
    return status in (408, 425, 429) or status >= 500


def next_try(exc: Exception, *, is_safe: bool, left: float) -> bool | float:
    """Return whether to send a request again: seconds to wait, True for the usual backoff, False for never.

    What was not sent may always be; what was sent only if it is safe. left: seconds until the deadline.
    """
    if isinstance(exc, Unreachable):
        return not exc.is_lasting and (is_safe or not exc.sent)
    if not isinstance(exc, BadStatus) or not (is_safe and is_passing(exc.status)):
        return False
    if exc.retry_after is None:
        return True
    return exc.retry_after + random.uniform(0, JITTER_S) if exc.retry_after < left else False  # noqa: S311
