"""What went wrong with one attempt, and what that means for the next."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import Any

from toolhub_agent.errors import ContextTooLong, LlmRefused
from toolhub_agent.llm.retry import is_passing

# Of a server's text in an error; enough for every engine's own messages.
LONGEST_TEXT = 600
# The words of vLLM, SGLang, OpenAI, llama.cpp and TensorRT-LLM for a prompt that does not fit.
_TOO_LONG = re.compile(
    r"maximum context length|context[_ ]length[_ ]exceeded|maximum model length|longer than the model"
    r"|exceed\w* (?:the |model's )*(?:maximum (?:allowed |context |input |sequence )?length|max_seq_len|context window)"
    r"|exceed\w* (?:the )?available context|exceed_context_size|prompt is too long",
    re.IGNORECASE,
)


class Verdict(Enum):
    """What another attempt would bring."""

    AGAIN = "may work"
    REFUSED = "is refused the same way"
    TOO_LONG = "does not fit either"


class AttemptFailed(Exception):
    """One attempt came to nothing. blames: the endpoint, not the answer, so another endpoint is better."""

    def __init__(
        self,
        cause: str,
        *,
        verdict: Verdict = Verdict.AGAIN,
        status: int | None = None,
        retry_after: float | None = None,
        blames: bool = True,
    ) -> None:
        super().__init__(cause)
        self.verdict = verdict
        self.status = status
        self.retry_after = retry_after
        self.blames = blames

    def refusal(self, endpoint: str) -> LlmRefused:
        """The error for a caller. Only if the verdict is not AGAIN."""
        kind = ContextTooLong if self.verdict is Verdict.TOO_LONG else LlmRefused
        return kind(f"{endpoint} refused the request: {self}", endpoint=endpoint, status=self.status)


def refused_or_passing(
    status: int | None, text: str, *, code: str = "", retry_after: float | None = None
) -> AttemptFailed:
    """An error that a server told. status: None if it did not name one. text: already fit to be shown."""
    what = f"{status}: {text}" if status is not None else text
    if is_too_long(f"{code} {text}") and (status is None or status < 500):
        return AttemptFailed(what, verdict=Verdict.TOO_LONG, status=status, blames=False)
    if status is None or is_passing(status):
        return AttemptFailed(what, status=status, retry_after=retry_after)
    return AttemptFailed(what, verdict=Verdict.REFUSED, status=status, blames=False)


def is_too_long(text: str) -> bool:
    """Whether a server's text says that the prompt does not fit the model's context."""
    return _TOO_LONG.search(text) is not None


def message_in(body: Any) -> tuple[str, str]:
    """(message, code) of an error body: OpenAI's and vLLM's object, SGLang's flat one, FastAPI's `detail`, or text."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(inner, dict):
        message = inner.get("message") or inner.get("detail") or inner.get("msg") or ""
        return str(message), " ".join(str(inner[key]) for key in ("code", "type") if inner.get(key) is not None)
    return str(inner or ""), ""


def shown(text: str, secrets: Iterable[str]) -> str:
    """A server's text as an error may carry it: on one line, bounded, with nothing that was configured as secret."""
    for secret in secrets:
        text = text.replace(secret, "***")
    line = " ".join(text[: LONGEST_TEXT * 4].split())
    return line if len(line) <= LONGEST_TEXT else f"{line[:LONGEST_TEXT]}..."
