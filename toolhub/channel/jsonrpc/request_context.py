"""The context of one request from the other side, as its handler sees it, and how a handler's errors are answered."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
from mcp import MCPError
from mcp.shared.dispatcher import CallOptions, Outbound
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.message import MessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import INVALID_PARAMS, ErrorData, RequestId
from pydantic import ValidationError

from toolhub.model import Json

Params = Mapping[str, Any] | None

logger = logging.getLogger(__name__)

_DUPLEX = TransportContext(kind="duplex", can_send_request=True)
# The code that the SDK's dispatcher answers for an unknown exception.
_UNKNOWN_ERROR = 0


@dataclass(eq=False)
class RequestContext:
    """One request or notification of the other side: the SDK's `DispatchContext`."""

    peer: Outbound = field(repr=False)
    request_id: RequestId | None = None
    """None for a notification."""
    progress_token: RequestId | None = None
    is_over: bool = False
    transport: TransportContext = _DUPLEX
    message_metadata: MessageMetadata = None
    scope: anyio.CancelScope = field(repr=False, default_factory=anyio.CancelScope)
    cancel_requested: anyio.Event = field(repr=False, default_factory=anyio.Event)

    @classmethod
    def of(cls, peer: Outbound, request_id: RequestId, params: Params) -> RequestContext:
        meta = (params or {}).get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        return cls(peer, request_id, token if isinstance(token, int | str) and not isinstance(token, bool) else None)

    @property
    def can_send_request(self) -> bool:
        return not self.is_over

    async def send_raw_request(self, method: str, params: Params, opts: CallOptions | None = None) -> Json:
        if self.is_over:
            raise NoBackChannelError(method)
        return await self.peer.send_raw_request(method, params, opts)

    async def notify(self, method: str, params: Params, opts: CallOptions | None = None) -> None:
        if not self.is_over:
            await self.peer.notify(method, params, opts)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        if self.progress_token is None:
            return
        report = {"progressToken": self.progress_token, "progress": progress, "total": total, "message": message}
        await self.notify("notifications/progress", {key: value for key, value in report.items() if value is not None})

    def cancel(self) -> None:
        """The other side no longer wants the answer."""
        self.cancel_requested.set()
        self.scope.cancel()


def error_of(exc: Exception, method: str) -> ErrorData:
    """Turn a handler's exception into a JSON-RPC error, as the SDK's dispatcher does."""
    if isinstance(exc, MCPError):
        return exc.error
    if isinstance(exc, ValidationError):
        return ErrorData(code=INVALID_PARAMS, message="Invalid request parameters", data="")
    logger.error("the handler of %r raised", method, exc_info=exc)
    return ErrorData(code=_UNKNOWN_ERROR, message=str(exc))
