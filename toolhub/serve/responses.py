"""Read request bodies, turn errors into responses, stream calls, and notice when a client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from toolhub.errors import Overloaded, ToolhubError, Unauthorized
from toolhub.model import Json, LogFn, ProgressFn, Result
from toolhub.wire import NDJSON, error_to_wire, status_of

# Proxies and clients give up on silent connections after about a minute.
KEEPALIVE_S = 15.0
CLIENT_CLOSED_REQUEST = 499
# A watcher per request costs a fifth of a fast call. No client disconnects before an answer that comes this soon.
_WATCH_AFTER_S = 0.02

Endpoint = Callable[[Request], Awaitable[Response]]
T = TypeVar("T")
BodyT = TypeVar("BodyT", bound=BaseModel)


class BadRequest(Exception):
    """The request is malformed. `status` is the HTTP status of the answer."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(value), status, headers, media_type="application/json")


def error_response(exc: Exception) -> Response:
    """Return the API's response for an error."""
    if isinstance(exc, BadRequest):
        return json_response({"error": {"type": "BadRequest", "message": str(exc)}}, exc.status)
    assert isinstance(exc, ToolhubError)
    # The client has passed the guard, so credentials would not help: 403 instead of 401.
    status = 403 if isinstance(exc, Unauthorized) else status_of(exc)
    headers = {}
    if isinstance(exc, Overloaded):
        headers["Retry-After"] = str(max(1, round(exc.retry_after or 1)))
    return json_response({"error": error_to_wire(exc)}, status, headers)


def answering(endpoint: Endpoint) -> Endpoint:
    """Return the endpoint, with its errors turned into the API's responses."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except (ToolhubError, BadRequest) as exc:
            return error_response(exc)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)

    answer.__name__, answer.__doc__ = endpoint.__name__, endpoint.__doc__
    return answer


def finite(seconds: float) -> float | None:
    """Return a lease as JSON has it: null for one without an end."""
    return None if math.isinf(seconds) else seconds


async def read_body(request: Request, model: type[BodyT]) -> BodyT:
    """Return the validated JSON body. An empty body counts as ``{}``.

    Raises BadRequest with the field's name, ClientDisconnect if the client disconnects before the end of the body.
    """
    try:
        # `LimitedProtocol` bounds its size and its time.
        return model.model_validate_json(await request.body() or b"{}")
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise BadRequest(f"{where}: {first['msg']}", 422 if first["type"] != "json_invalid" else 400) from None


async def while_connected(request: Request, work: Awaitable[T]) -> T | None:
    """Await `work`. If the client disconnects, cancel it and return None."""
    outcome: list[T] = []
    failure: list[ToolhubError] = []
    is_watched = False

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        tasks.cancel_scope.cancel()

    def begin_watch() -> None:
        nonlocal is_watched
        is_watched = True
        tasks.start_soon(watch)

    async with anyio.create_task_group() as tasks:
        later = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, begin_watch)
        try:
            outcome.append(await work)
        except ToolhubError as exc:
            failure.append(exc)  # raised below, because the task group would wrap it
        finally:
            later.cancel()
        if is_watched:  # to cancel an empty group would cost as much as to watch
            tasks.cancel_scope.cancel()
    if failure:
        raise failure[0]
    return outcome[0] if outcome else None


Calling = Callable[[ProgressFn, LogFn], Awaitable[Result]]


class CallStream(StreamingResponse):
    """Runs a call and sends its progress, logs and result as lines of JSON. A disconnect of the client cancels it.

    It is no generator, because a generator would stay suspended, with its call, if the client disconnects while a line
    is sent.
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
        async def send_line(line: Json) -> None:
            # Progress that comes after the result, or after the disconnect, is dropped.
            with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                await to_client.send(line)

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            await send_line({"progress": {"progress": progress, "total": total, "message": message}})

        async def on_log(params: Json) -> None:
            await send_line({"log": params})

        try:
            last: Json = {"result": (await self._call(on_progress, on_log)).raw}
        except ToolhubError as exc:
            last = {"error": error_to_wire(exc)}
        await send_line(last)
