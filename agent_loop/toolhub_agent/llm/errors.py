"""Failures of one attempt: what they mean for the next attempt, and how long to wait before it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any

from toolhub_agent.errors import ContextTooLong, LlmRefused

# --- When to try again ------------------------------------------------------------------------------------------------
# Full jitter, Retry-After, deadlines. No I/O.

# The pause before another attempt is random between 0 and this. The bound doubles with each attempt.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
# A random addition to Retry-After, so that clients with the same Retry-After do not return at the same moment.
JITTER_S = 0.5


def is_retryable(status: int) -> bool:
    """Whether the same request may soon be answered (RFC 9110 section 15, RFC 8470 for 425)."""
    return status in (408, 409, 425, 429) or status >= 500


def retry_pause(attempt: int, *, retry_after: float | None = None) -> float:
    """Seconds to wait after an attempt. attempt: its number, from 1."""
    if retry_after is not None:
        return retry_after + random.uniform(0, JITTER_S)  # noqa: S311
    return random.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(attempt - 1, 16)))  # noqa: S311


def parse_retry_after(text: str | None, now: datetime | None = None) -> float | None:
    """Seconds from a Retry-After header, a number or an HTTP date (RFC 9110 section 10.2.3); None for anything else."""
    text = (text or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError, LookupError, TypeError):  # the parser raises all of these for malformed dates
        return None
    if moment.tzinfo is None:  # "-0000"
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


# --- What went wrong --------------------------------------------------------------------------------------------------
# What went wrong with one attempt, and what that means for the next.

# How much of a server's text an error contains: enough for every engine's own messages.
LONGEST_TEXT = 600
# How vLLM, SGLang, OpenAI, llama.cpp and TensorRT-LLM say that a prompt does not fit.
_CONTEXT_OVERFLOW = re.compile(
    r"maximum context length|context[_ ]length[_ ]exceeded|maximum model length|longer than the model"
    r"|exceed\w* (?:the |model's )*(?:maximum (?:allowed |context |input |sequence )?length|max_seq_len|context window)"
    r"|exceed\w* (?:the )?available context|exceed_context_size|prompt is too long",
    re.IGNORECASE,
)


# The statuses of an engine that does not know a field of the request.
UNKNOWN_FIELD = frozenset({400, 422})


class FailureKind(Enum):
    """What another attempt of the same request would bring."""

    RETRYABLE = "may work"
    REFUSED = "is refused the same way"
    TOO_LONG = "does not fit either"


class AttemptFailed(Exception):
    """One attempt failed. is_endpoint_fault: the endpoint failed, not the answer, so another endpoint is better."""

    def __init__(
        self,
        cause: str,
        *,
        kind: FailureKind = FailureKind.RETRYABLE,
        status: int | None = None,
        retry_after: float | None = None,
        is_endpoint_fault: bool = True,
    ) -> None:
        super().__init__(cause)
        self.kind = kind
        self.status = status
        self.retry_after = retry_after
        self.is_endpoint_fault = is_endpoint_fault

    def refusal(self, endpoint: str) -> LlmRefused:
        """The error for the caller. Only for a failure that is not retryable."""
        error = ContextTooLong if self.kind is FailureKind.TOO_LONG else LlmRefused
        return error(f"{endpoint} refused the request: {self}", endpoint=endpoint, status=self.status)


def failure_from_status(
    status: int | None, text: str, *, code: str = "", retry_after: float | None = None
) -> AttemptFailed:
    """The failure that a server reported. status: None if it gave none. text: already sanitized."""
    what = f"{status}: {text}" if status is not None else text
    if is_context_overflow(f"{code} {text}") and (status is None or status < 500):
        return AttemptFailed(what, kind=FailureKind.TOO_LONG, status=status, is_endpoint_fault=False)
    if status is None or is_retryable(status):
        return AttemptFailed(what, status=status, retry_after=retry_after)
    return AttemptFailed(what, kind=FailureKind.REFUSED, status=status, is_endpoint_fault=False)


def is_context_overflow(text: str) -> bool:
    """Whether a server's text says that the prompt does not fit the model's context."""
    return _CONTEXT_OVERFLOW.search(text) is not None


def error_message(body: Any) -> tuple[str, str]:
    """(message, code) of an error body: the object of OpenAI and vLLM, SGLang's flat one, FastAPI's `detail`, text."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(inner, dict):
        message = inner.get("message") or inner.get("detail") or inner.get("msg") or ""
        return str(message), " ".join(str(inner[key]) for key in ("code", "type") if inner.get(key) is not None)
    return str(inner or ""), ""


def sanitize(text: str, secrets: Iterable[str]) -> str:
    """A server's text for use in an error: on one line, bounded, without the configured secrets."""
    for secret in secrets:
        text = text.replace(secret, "***")
    line = " ".join(text[: LONGEST_TEXT * 4].split())
    return line if len(line) <= LONGEST_TEXT else f"{line[:LONGEST_TEXT]}..."
