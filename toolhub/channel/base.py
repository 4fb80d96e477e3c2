"""The interface between a session and what carries it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from toolhub.errors import Sent
from toolhub.model import Json, Listener, LogFn, ProgressFn, RelayedRequest, ServerInfo


class Channel(Protocol):
    """A live conversation with one server. An async context manager opens and ends it."""

    info: ServerInfo
    pid: int | None
    on_tools_changed: Callable[[], None] | None
    """Called (without waiting) when the server says that its tool list changed."""
    listeners: Collection[Listener]
    """The clients that get what belongs to no request. The slot sets them, and they outlive the channel."""

    async def list_tools(self) -> list[Json]:
        """Return every tool as its wire object, from all pages."""
        ...

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        on_progress: ProgressFn | None = None,
        on_log: LogFn | None = None,
    ) -> Json:
        """Send a request and return its wire result. Cancelling sends `notifications/cancelled`.

        Raises ChannelClosed when the conversation ended, Refused when the server answered with a JSON-RPC error,
        ProtocolViolation when its answer makes no sense.
        """
        ...

    async def relay(self, relayed: RelayedRequest) -> Json:
        """Pass a client's request on and return the wire result. Raises what `request()` raises.

        Progress, logs and questions of the server go to the client of this request.
        """
        ...

    async def knows_modern_era(self) -> bool:
        """Whether the server would speak revision 2026-07-28 in a conversation of its own."""
        ...

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification. It is dropped if the conversation has ended."""
        ...

    async def wait_closed(self) -> None:
        """Return when the conversation has ended, for whatever reason."""
        ...

    def exit_info(self) -> ExitInfo:
        """Return what is known about the end. Call it after `wait_closed()`."""
        ...


@dataclass
class ExitInfo:
    """What is known about a server that ended: exit code, last stderr lines, lines on stdout that are not JSON-RPC."""

    exit_code: int | None = None
    stderr: list[str] = field(default_factory=list)
    noise: list[str] = field(default_factory=list)
    noise_lines: int = 0
    cause: str = ""


class ChannelClosed(Exception):
    """The conversation ended before the answer. `sent` is "no" only when the server cannot have seen the request."""

    def __init__(self, message: str = "connection closed", *, sent: Sent = "maybe") -> None:
        super().__init__(message)
        self.sent: Sent = sent


class Refused(Exception):
    """The other side, a server or the client of a relayed request, answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class OpenFailed(Exception):
    """The conversation could not be set up. The session turns it into a StartError."""

    def __init__(self, message: str, exit_info: ExitInfo | None = None) -> None:
        super().__init__(message)
        self.exit_info = exit_info or ExitInfo()


class EraRefused(OpenFailed):
    """The server does not speak the era that it was asked for first. A new process can be asked for the other one."""
