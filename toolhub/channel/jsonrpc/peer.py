"""One end of a JSON-RPC connection: a future per request, and a task per request of the other side.

`Peer` takes the place of the SDK's dispatcher under `ClientSession`, and under builtin servers. There is no stream,
task, span or model between `send_raw_request` and the transport, so that a call costs one message out and one round of
the event loop back. Messages are plain dicts; the transport encodes them.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import anyio
import anyio.abc
import anyio.lowlevel
from mcp import MCPError
from mcp.shared.dispatcher import (
    CallOptions,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    Outbound,
    ProgressFnT,
    coerce_request_id,
    run_notify_intercept,
)
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.message import MessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, REQUEST_TIMEOUT, ErrorData, RequestId
from opentelemetry.context import get_current
from opentelemetry.propagate import inject
from pydantic import ValidationError

from toolhub.channel.jsonrpc.futures import Future, future_factory
from toolhub.model import Json

Params = Mapping[str, Any] | None

RawNotified = Callable[[str, Params], Callable[[], Awaitable[None]] | None]
"""Called with (method, params) of each notification, in order. May return work to be done in a task."""


class LocalError(enum.Enum):
    """The `data` of an error that was made on this side. A server's own error can have the same code, not this data."""

    CLOSED = "the connection ended; the other side may have seen the request"
    UNSENT = "the connection ended before anything of the request was written"
    UNREADABLE = "the answer was cut, or is no JSON-RPC"


_CLOSED = ErrorData(code=CONNECTION_CLOSED, message="Connection closed", data=LocalError.CLOSED)
_CLOSED_UNSENT = ErrorData(code=CONNECTION_CLOSED, message="Connection closed", data=LocalError.UNSENT)

_DUPLEX = TransportContext(kind="duplex", can_send_request=True)
# The code that the SDK's dispatcher answers for an unknown exception.
_UNKNOWN_ERROR = 0

logger = logging.getLogger(__name__)


class MessageSource(Protocol):
    """Where messages come from."""

    async def receive_loop(self, take: Callable[[Any], bool]) -> None:
        """Hand every message to `take`, in order, until the other side ends.

        `take` returns False for what is not JSON-RPC.
        """
        ...


class MessageSink(Protocol):
    """Where messages go to."""

    @property
    def is_full(self) -> bool:
        """Whether the other side has stopped reading. New requests then wait; answers and notices are still sent."""
        ...

    async def wait_room(self) -> None:
        """Return when the other side has read something or the sink was closed. Callers check `is_full` again."""
        ...

    def send(self, message: Json, headers: Mapping[str, str] | None = None) -> None:
        """Send without waiting. The caller may change the message afterwards. headers: for HTTP.

        Raises BrokenResourceError when the other side is gone, ValueError for what is not JSON.
        """
        ...

    def close(self) -> None:
        """Stop sending, and wake all callers of `wait_room()`."""
        ...


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


class Peer:
    """The SDK's `Dispatcher` interface over a source and a sink. `ended` is set when no message can come any more."""

    def __init__(self, source: MessageSource, sink: MessageSink) -> None:
        self.ended = anyio.Event()
        self.on_raw_notification: RawNotified | None = None
        """Gets notifications instead of the `on_notify` that `run` was given."""
        self._source = source
        self._sink = sink
        self._number = 0
        self._waiting: dict[RequestId, Future[Json | ErrorData]] = {}
        self._listening: dict[RequestId, ProgressFnT] = {}
        self._handling: dict[RequestId, RequestContext] = {}
        self._new_future: Callable[[], Future[Any]] | None = None
        self._tasks: anyio.abc.TaskGroup
        self._on_request: OnRequest
        self._on_notify: OnNotify
        self._intercept: OnNotifyIntercept | None = None

    def __repr__(self) -> str:
        return f"<Peer waiting={len(self._waiting)} handling={len(self._handling)} ended={self.ended.is_set()}>"

    # --- requests to the other side ---------------------------------------------------------------------------------

    async def send_raw_request(self, method: str, params: Params, opts: CallOptions | None = None) -> Json:
        """Return the other side's result. Cancelling tells the other side, without waiting for it.

        Raises MCPError: the other side's error, CONNECTION_CLOSED, or REQUEST_TIMEOUT after `opts["timeout"]` seconds.
        """
        if opts is None or (timeout := opts.get("timeout")) is None:
            return await self.request(method, params, opts or {})
        with anyio.move_on_after(timeout):
            return await self.request(method, params, opts)
        raise MCPError(code=REQUEST_TIMEOUT, message=f"Request {method!r} timed out")

    async def request(self, method: str, params: Params, opts: CallOptions) -> Json:
        """Like `send_raw_request()`, without `opts["timeout"]`."""
        if self._new_future is None:
            raise RuntimeError("a request before run()")
        await anyio.lowlevel.checkpoint_if_cancelled()  # a cancelled request must not be sent
        while self._sink.is_full:
            await self._sink.wait_room()
        if self.ended.is_set():
            raise MCPError.from_error_data(_CLOSED_UNSENT)
        number, on_progress = self._number_for(opts), opts.get("on_progress")
        key = coerce_request_id(number)
        answer: Future[Json | ErrorData] = self._new_future()
        self._waiting[key] = answer
        if on_progress is not None:
            self._listening[key] = on_progress
        outcome: Json | ErrorData = _CLOSED
        try:
            request = _request(number, method, params, wants_progress=on_progress is not None)
            self._sink.send(request, opts.get("headers"))
            outcome = await answer
        except anyio.BrokenResourceError:
            outcome = _CLOSED_UNSENT
        except anyio.get_cancelled_exc_class():
            if self._waiting.get(key) is answer and opts.get("cancel_on_abandon", True):
                self._send_or_drop(
                    _message("notifications/cancelled", {"requestId": number, "reason": "caller cancelled"})
                )
            raise
        finally:
            if self._waiting.get(key) is answer:
                del self._waiting[key]
            if on_progress is not None:
                del self._listening[key]
        if isinstance(outcome, ErrorData):
            raise MCPError.from_error_data(outcome)
        return outcome

    def _number_for(self, opts: CallOptions) -> RequestId:
        if (given := opts.get("request_id")) is not None:
            if coerce_request_id(given) in self._waiting:
                raise ValueError(f"request id {given!r} is already in flight")
            return given
        self._number += 1
        while self._number in self._waiting:
            self._number += 1
        return self._number

    async def notify(self, method: str, params: Params, opts: CallOptions | None = None) -> None:
        """Send a notification. It is dropped if the other side is gone."""
        self._send_or_drop(_message(method, params), (opts or {}).get("headers"))

    def _send_or_drop(self, message: Json, headers: Mapping[str, str] | None = None) -> None:
        try:
            self._sink.send(message, headers)
        except anyio.BrokenResourceError:
            logger.debug("dropped %s: the other side is gone", message.get("method", "an answer"))

    # --- messages from the other side -------------------------------------------------------------------------------

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Take messages until the source ends. Runs once."""
        self._on_request, self._on_notify, self._intercept = on_request, on_notify, on_notify_intercept
        self._new_future = future_factory()
        try:
            async with anyio.create_task_group() as self._tasks:
                task_status.started()
                try:
                    await self._source.receive_loop(self._take)
                finally:
                    self._end()
                    self._tasks.cancel_scope.cancel()
        finally:
            self._sink.close()  # after the handlers have sent their last answers
            # They refer to this peer: without the cycle its memory is free at once.
            del self._on_request, self._on_notify
            self._intercept = self.on_raw_notification = None

    def _end(self) -> None:
        self.ended.set()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(_CLOSED)

    def _take(self, message: Any) -> bool:
        if not isinstance(message, dict):
            return False
        if "method" in message:
            return self._take_question(message)
        number, outcome = message.get("id"), message.get("result")
        if not isinstance(number, int | str):
            return False
        if not isinstance(outcome, dict):
            try:
                outcome = ErrorData.model_validate(message.get("error"))
            except ValidationError:
                return False
        answer = self._waiting.pop(coerce_request_id(number), None)
        if answer is not None and not answer.done():
            # Neither validated nor copied: a result is opaque here, and may be tens of megabytes.
            answer.set_result(outcome)
        return True

    def _take_question(self, message: Json) -> bool:
        method, params, number = message["method"], message.get("params"), message.get("id")
        if message.get("jsonrpc") != "2.0" or not isinstance(method, str) or not isinstance(params, dict | None):
            return False
        if number is None:
            self._notified(method, params)
        elif isinstance(number, int | str):
            context, key = RequestContext.of(self, number, params), coerce_request_id(number)
            self._handling[key] = context
            self._tasks.start_soon(self._handle, context, key, method, params)
        else:
            return False
        return True

    def _notified(self, method: str, params: Params) -> None:
        if method == "notifications/cancelled":
            number = (params or {}).get("requestId")
            if isinstance(number, int | str) and (context := self._handling.get(coerce_request_id(number))) is not None:
                context.cancel()
        elif method == "notifications/progress":
            self._progressed(params or {})
        if run_notify_intercept(self._intercept, method, params):
            return
        if (work := self._shown(method, params)) is not None:
            self._tasks.start_soon(_contained, work)

    def _shown(self, method: str, params: Params) -> Callable[[], Awaitable[None]] | None:
        if self.on_raw_notification is None:
            return partial(self._on_notify, RequestContext(self), method, params)
        try:
            return self.on_raw_notification(method, params)
        except Exception:
            logger.exception("a listener of notifications raised")
            return None

    def _progressed(self, params: Mapping[str, Any]) -> None:
        token, progress, total, text = (params.get(key) for key in ("progressToken", "progress", "total", "message"))
        listener = self._listening.get(coerce_request_id(token)) if isinstance(token, int | str) else None
        if listener is None or not isinstance(progress, int | float):
            return
        known = float(total) if isinstance(total, int | float) else None
        message = text if isinstance(text, str) else None
        self._tasks.start_soon(_contained, partial(listener, float(progress), known, message))

    async def _handle(self, context: RequestContext, key: RequestId, method: str, params: Params) -> None:
        """Answer one request; a request that the other side cancelled is not answered."""
        answer: Json | None = None
        try:
            with context.scope:
                answer = {"result": await self._on_request(context, method, params)}
        except anyio.get_cancelled_exc_class():
            answer = _error(_CLOSED)
            raise
        except Exception as exc:
            answer = _error(_error_of(exc, method))
        finally:
            context.is_over = True
            if self._handling.get(key) is context:
                del self._handling[key]
            if answer is not None and not context.cancel_requested.is_set():
                self._send_or_drop({"jsonrpc": "2.0", "id": context.request_id, **answer})


def _message(method: str, params: Params) -> Json:
    message: Json = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return message


def _request(number: RequestId, method: str, params: Params, *, wants_progress: bool) -> Json:
    """Make a request. Most need nothing in `_meta`; then no params are copied."""
    trace = get_current()  # empty without tracing
    if wants_progress or trace:
        meta = dict((params or {}).get("_meta") or {})
        if wants_progress:
            meta["progressToken"] = number
        if trace:
            inject(meta, trace)
        params = {**(params or {}), "_meta": meta}
    message: Json = {"jsonrpc": "2.0", "id": number, "method": method}
    if params:
        message["params"] = params
    return message


def _error(error: ErrorData) -> Json:
    return {"error": error.model_dump(exclude_none=True)}


async def _contained(work: Callable[[], Awaitable[None]]) -> None:
    """Run a listener. Its errors are logged and do not end the connection."""
    try:
        await work()
    except Exception:
        logger.exception("a listener of notifications raised")


def _error_of(exc: Exception, method: str) -> ErrorData:
    """Turn a handler's exception into a JSON-RPC error, as the SDK's dispatcher does."""
    if isinstance(exc, MCPError):
        return exc.error
    if isinstance(exc, ValidationError):
        return ErrorData(code=INVALID_PARAMS, message="Invalid request parameters", data="")
    logger.error("the handler of %r raised", method, exc_info=exc)
    return ErrorData(code=_UNKNOWN_ERROR, message=str(exc))
