"""Why a request has no usable answer: one class per decision that a server takes."""

from __future__ import annotations

from toolhub.errors import ToolhubError


class WebError(ToolhubError):
    """Root. The text names the host and the reason, and contains no secret of the request."""


class Forbidden(WebError):
    """The address must not be reached: it is not http(s), or it is private and not allowed. Nothing was sent to it."""


class Unreachable(WebError):
    """There was no connection, or it broke.

    sent: the host may have acted on the request. is_lasting: trying again soon will not help (the name does not exist,
    the certificate is wrong, it redirects for ever).
    """

    def __init__(self, message: str, *, sent: bool = False, is_lasting: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.is_lasting = is_lasting


class WebTimeout(WebError):
    """The time for the whole request is over."""


class BadStatus(WebError):
    """The status of the answer is 400 or more, after all retries. text: the start of the body.

    retry_after: the pause in seconds that the host asked for. If other requests were told so, this one was not sent.
    """

    def __init__(self, message: str, *, status: int, text: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.text = text
        self.retry_after = retry_after


class Preempted(WebError):
    """A speculative request made way for a real one, or found no free place. It may be sent again."""


class ConfinementUnavailable(WebError):
    """This machine cannot confine a process for untrusted input. The text says why and what to do."""


class ResourceLimitExceeded(WebError):
    """Parsing the answer took more time or memory than allowed (see `offload`). The same answer will fail again."""
