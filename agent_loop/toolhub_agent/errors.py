"""The errors of the agent loop: one class per decision of a caller."""

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
    """All attempts failed, or their time was used up. Trying again later may help."""


class LlmRefused(LlmError):
    """The server understood the request and will never accept it (4xx): wrong key, unknown model, bad parameter."""


class ContextTooLong(LlmRefused):
    """The prompt does not fit the model's context. Shorten it."""


class AnswerUnreadable(AgentError):
    """The stream ended without a usable answer (broken off, endless repetition, cut off)."""


class ToolFailed(AgentError):
    """A tool call failed. The text is for the model, which may try something else."""
