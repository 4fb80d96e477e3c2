"""The answers of the stand-in service, and the faults that are staged instead."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tests.toolhub_sandbox.e2b.standin_machine import HOME, Context, Machine


@dataclass
class Fault:
    """What happens to requests whose `METHOD /path` matches, `times` times."""

    pattern: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)
    until: anyio.Event | None = None
    """Answer only when it is set; with no status the request is then served."""
    times: int = 1_000_000

    async def __call__(self, scope: Any, receive: Any, send: Any) -> bool:
        """Return whether it answered."""
        if self.until is not None:
            await self.until.wait()
        if self.status:
            body = {"code": self.status, "message": "staged", **self.body}
            await JSONResponse(body, self.status, self.headers)(scope, receive, send)
        return bool(self.status)


async def pieces(place: Path) -> AsyncIterator[bytes]:
    with place.open("rb") as file:
        while piece := file.read(65536):
            yield piece


class Lines(Response):
    """What an execution says, until it ends or the client goes away; then the code is interrupted."""

    def __init__(self, messages: AsyncIterator[dict[str, Any]], on_message: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._messages = messages
        self._on_message = on_message

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"application/x-ndjson")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            try:
                async for message in self._messages:
                    self._on_message(message)
                    await send({"type": "http.response.body", "body": _line(message), "more_body": True})
            finally:
                await self._messages.aclose()  # type: ignore[attr-defined]  # it is a generator
            await send({"type": "http.response.body", "body": _line({"type": "end_of_execution"})})
            tasks.cancel_scope.cancel()


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def context_description(context: Context) -> dict[str, str]:
    return {"id": context.id, "language": "python", "cwd": HOME}


def error(status: int, message: str) -> Response:
    return JSONResponse({"code": status, "message": message}, status)


def gone(request: Request) -> Response:
    return error(502, "The sandbox was not found")


def iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()


def sandbox_description(machine: Machine) -> dict[str, Any]:
    return {
        "templateID": machine.request["templateID"],
        "sandboxID": machine.id,
        "clientID": "standin",
        "envdVersion": "0.6.13",
        "envdAccessToken": machine.token,
        "startedAt": iso(machine.started_at),
        "endAt": iso(machine.ends_at),
        "cpuCount": 2,
        "memoryMB": 1024,
        "diskSizeMB": 1024,
        "state": "running",
        "metadata": machine.request["metadata"],
    }
