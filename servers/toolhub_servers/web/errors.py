"""Why a request gave no usable answer, one class per decision that a server takes."""

from __future__ import annotations

from toolhub.errors import ToolhubError


class WebError(ToolhubError):
    """Root; the text names the host and the reason, never a secret of the request."""


class Forbidden(WebError):
    """The address is not one that may be reached: not http(s), or private and not allowed. Nothing was sent to it."""


class Unreachable(WebError):
    """No connection, or it broke.

    sent: the request may have been acted on. is_lasting: trying again soon will not help (the name does not exist, the
    certificate is wrong, it redirects for ever).
    """

    def __init__(self, message: str, *, sent: bool = False, is_lasting: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.is_lasting = is_lasting


class WebTimeout(WebError):
    """The time for the whole request passed."""


class BadStatus(WebError):
    """The answer's status is 400 or more, after the retries. text: the start of its body.

    retry_after: seconds that the host asked for; where others' requests were told so, this one was not even sent.
    """

    def __init__(self, message: str, *, status: int, text: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.text = text
        self.retry_after = retry_after


class ConfinementUnavailable(WebError):
    """This machine lets no process be confined for hostile input. The text says why and what to do."""


class ResourceLimitExceeded(WebError):
    """Reading the answer took more time or memory than it may (see `offload`); the same answer will do so again."""
