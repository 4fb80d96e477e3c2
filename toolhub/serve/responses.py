"""From request to answer: reading bodies, mapping errors, streaming, and noticing that the client has left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from toolhub.errors import Overloaded, ToolhubError, Unauthorized
from toolhub.model import Json, LogFn, ProgressFn, Result
from toolhub.serve.schemas import Body
from toolhub.wire import NDJSON, error_to_wire, status_of

# Proxies and clients give up on silent connections after about a minute.
KEEPALIVE_S = 15.0
CLIENT_CLOSED_REQUEST = 499
# A watcher per request costs a fifth of a fast call; nobody hangs up on an answer that comes sooner than this.
_WATCH_AFTER_S = 0.02

T = TypeVar("T")
BodyT = TypeVar("BodyT", bound=Body)


class BadRequest(Exception):
    """The request cannot be understood; `status` is its HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(value), status, headers, media_type="application/json")


def error_response(exc: Exception) -> Response:
    """An error as the API tells it."""
    if isinstance(exc, BadRequest):
        return json_response({"error": {"type": "BadRequest", "message": str(exc)}}, exc.status)
    assert isinstance(exc, ToolhubError)
    # Whoever got past the guard need not log in: this door does not allow it to anybody.
    status = 403 if isinstance(exc, Unauthorized) else status_of(exc)
    headers = {}
    if isinstance(exc, Overloaded):
        headers["Retry-After"] = str(max(1, round(exc.retry_after or 1)))
    return json_response({"error": error_to_wire(exc)}, status, headers)


async def read_body(request: Request, model: type[BodyT]) -> BodyT:
    """Return the validated JSON body; an empty one counts as ``{}``.

    Raises BadRequest naming the field, ClientDisconnect when the client leaves before the end of the body.
    """
    try:
        # `LimitedProtocol` bounds its size and its time.
        return model.model_validate_json(await request.body() or b"{}")
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise BadRequest(f"{where}: {first['msg']}", 422 if first["type"] != "json_invalid" else 400) from None


async def while_connected(request: Request, work: Awaitable[T]) -> T | None:
    """Await `work`, or cancel it and return None when the client drops the connection."""
    outcome: list[T] = []
    failure: list[ToolhubError] = []

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        later = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, tasks.start_soon, watch)
        try:
            outcome.append(await work)
        except ToolhubError as exc:
            failure.append(exc)  # kept out of the task group, which would wrap it
        finally:
            later.cancel()
        tasks.cancel_scope.cancel()
    if failure:
        raise failure[0]
    return outcome[0] if outcome else None


Calling = Callable[[ProgressFn, LogFn], Awaitable[Result]]


class CallStream(StreamingResponse):
    """Runs a call and sends its progress, logs and result as lines of JSON; a client that leaves cancels it.

    Not a generator: that would be left behind, with the call in it, when its client leaves while a line is being sent.
    """

    def __init__(self, call: Calling) -> None:
        super().__init__((), media_type=NDJSON, headers={"X-Accel-Buffering": "no"})
        self._call = call

    async def stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        to_client, lines = anyio.create_memory_object_stream[Json](256)
        async with anyio.create_task_group() as tasks, to_client, lines:
            tasks.start_soon(self._work, to_client)
            is_last = False
            while not is_last:
                line: Json = {"keepalive": True}
                with anyio.move_on_after(KEEPALIVE_S):
                    line = await lines.receive()
                is_last = "result" in line or "error" in line
                body = to_json(line) + b"\n"
                await send({"type": "http.response.body", "body": body, "more_body": not is_last})

    async def _work(self, to_client: MemoryObjectSendStream[Json]) -> None:
        async def tell(line: Json) -> None:
            # Progress that comes after the result, or after the client has left, has nowhere to go.
            with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                await to_client.send(line)

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            await tell({"progress": {"progress": progress, "total": total, "message": message}})

        async def on_log(params: Json) -> None:
            await tell({"log": params})

        try:
            last: Json = {"result": (await self._call(on_progress, on_log)).raw}
        except ToolhubError as exc:
            last = {"error": error_to_wire(exc)}
        await tell(last)
