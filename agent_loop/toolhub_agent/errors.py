"""The errors of the agent loop, one class per decision a caller can take."""

from __future__ import annotations

from toolhub.errors import ToolhubError


class AgentError(ToolhubError):
    """Root of the loop's own errors."""


class LlmError(AgentError):
    """A model server did not answer a request."""

    def __init__(self, message: str, *, endpoint: str = "", status: int | None = None) -> None:
        super().__init__(message)
        self.endpoint = endpoint
        self.status = status


class LlmUnavailable(LlmError):
    """All attempts were used up, or the time for them; trying again later may help."""


class LlmRefused(LlmError):
    """The server understood the request and will never take it (4xx): wrong key, unknown model, bad parameter."""


class ContextTooLong(LlmRefused):
    """The prompt does not fit the model's context; shorten it."""


class AnswerUnreadable(AgentError):
    """The stream ended in a way that is no answer (broken, repeated without end, cut off)."""
