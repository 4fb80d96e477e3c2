"""Every error toolhub raises, one class per decision a caller can take.

The one question a caller has after a failed call is "was it sent?"; `CallError.sent` answers it. Nothing with
``sent == "maybe"`` may be repeated unless the tool is declared safe to repeat. The page docs/errors.md explains every
class and its messages: the cause and the fix. `toolhub errors` prints its entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from toolhub_runtime import install_command

Sent = Literal["no", "maybe"]


class ToolhubError(Exception):
    """Root of the hierarchy."""

    @property
    def help_command(self) -> str:
        """The command that prints the cause and the fix."""
        return f"toolhub errors {type(self).__name__}"


class ConfigError(ToolhubError):
    """The configuration cannot be used; the message names file, line, key, what was expected and the way out."""

    def __init__(self, message: str, *, path: str = "", line: int | None = None, key: str = "") -> None:
        where = f"{path}:{line}" if line is not None else path
        super().__init__(": ".join(part for part in (where, key, message) if part))
        self.reason = message
        self.path = path
        self.line = line
        self.key = key


class MissingExtra(ToolhubError):
    """A command needs packages that the base install leaves out."""

    def __init__(self, extra: str, feature: str) -> None:
        super().__init__(f"{feature} needs the '{extra}' extra; install it with: {install_command(extra)}")
        self.extra = extra


class ToolNotFound(ToolhubError):
    """No such server or tool. Nothing was sent."""

    def __init__(self, message: str, *, near: Sequence[str] = ()) -> None:
        hint = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
        super().__init__(message + hint)
        self.near = tuple(near)


class CallError(ToolhubError):
    """A call failed. `sent` tells whether the server may have executed it."""

    default_sent: Sent = "maybe"

    def __init__(
        self, message: str, *, call_id: str = "", server: str = "", tool: str = "", sent: Sent | None = None
    ) -> None:
        super().__init__(message)
        self.call_id = call_id
        self.server = server
        self.tool = tool
        self.sent: Sent = sent or self.default_sent

    def identify(self, call_id: str, server: str, tool: str) -> None:
        """Fill in which call failed, where that is not known yet."""
        self.call_id, self.server, self.tool = self.call_id or call_id, self.server or server, self.tool or tool


class Overloaded(CallError):
    """The queue is full or the deadline cannot be met. Not sent; come back after `retry_after` seconds."""

    default_sent: Sent = "no"

    def __init__(self, message: str, *, retry_after: float | None = None, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.retry_after = retry_after


class StartError(CallError):
    """The server did not start, so nothing was sent. Carries the diagnosis and the last stderr lines."""

    default_sent: Sent = "no"

    def __init__(self, message: str, *, stderr_tail: Sequence[str] = (), **fields: Any) -> None:
        super().__init__(message, **fields)
        self.stderr_tail = tuple(stderr_tail)


class CallTimeout(CallError):
    """The caller's deadline passed. `sent` is "no" when the call still waited in a queue."""

    def __init__(self, message: str, *, timeout: float, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.timeout = timeout


class SessionLost(CallError):
    """The server died. `state_lost` is True once per death of a server that keeps state between calls."""

    def __init__(self, message: str, *, exit_code: int | None = None, state_lost: bool = False, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.exit_code = exit_code
        self.state_lost = state_lost


class NotRecorded(CallError):
    """The hub replays a recording, which has no such call. The message shows the nearest one. Nothing was sent."""

    default_sent: Sent = "no"


class CircuitOpen(CallError):
    """The server died too often, so calls fail at once until a cool-down has passed. Nothing was sent."""

    default_sent: Sent = "no"

    def __init__(self, message: str, *, since: float = 0.0, deaths: int = 0, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.since = since
        self.deaths = deaths


class ProtocolViolation(CallError):
    """The server broke MCP: its answer cannot be understood."""


class TaskClosed(ToolhubError):
    """The task was closed or its lease ran out; open a new one. `sent` is "maybe" for a call that was running."""

    def __init__(self, message: str, *, sent: Sent = "no") -> None:
        super().__init__(message)
        self.sent: Sent = sent


class HubClosed(ToolhubError):
    """The hub is shutting down or cannot be reached."""


class HubUnreachable(HubClosed):
    """No hub answers at the address. Nothing was sent, so the request may be sent to another hub."""


class HubLost(HubClosed):
    """The connection ended, or the hub stopped answering, during a request. It may have carried out the request."""


class HubTimeout(HubLost):
    """The hub is connected but did not answer, long after the request's timeout."""


class Unauthorized(ToolhubError):
    """The bearer token is missing or wrong, or this endpoint does not allow what was asked."""


def is_fault_of_infrastructure(error: ToolhubError | str, sent: Sent = "maybe") -> bool:
    """Whether a call failed because of the tools' infrastructure. What a model does then says nothing about the model.

    Not its fault are: a tool or server that does not exist, arguments that the server refuses, and a tool that ran into
    its time limit. A call whose time passed in a queue is. error: an exception, or a class name and the call's `sent`.
    """
    name = error if isinstance(error, str) else type(error).__name__
    if name == "CallTimeout":
        return (sent if isinstance(error, str) else getattr(error, "sent", sent)) == "no"
    return name not in ("ToolNotFound", "Refused")
