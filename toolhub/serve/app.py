"""The application: every door over one hub, behind one guard."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from toolhub import __version__
from toolhub.config.interpolate import check_task_id
from toolhub.errors import ConfigError
from toolhub.hosting import Door, find_doors
from toolhub.hub import Hub
from toolhub.scope import TaskScope
from toolhub.serve.answers import error_response, json_response
from toolhub.serve.api import TaskApi
from toolhub.serve.drain import Drain
from toolhub.serve.front import Context, Front
from toolhub.serve.guard import Guard
from toolhub.serve.metrics import metrics_route
from toolhub.serve.openapi import openapi_route

MCP_PATH = "/mcp"
TASK_HEADER = "x-toolhub-task"
SESSION_HEADER = "mcp-session-id"
# The task of MCP clients that neither name one nor have a session (revision 2026-07-28 has none).
COMMON_TASK = "mcp"

logger = logging.getLogger(__name__)


class HubFront:
    """The MCP front over a hub: a task per header, else per MCP session."""

    def __init__(self, hub: Hub, *, lease: float) -> None:
        self._hub = hub
        self._lease = lease
        self.front = Front(self._task_of, version=__version__)
        self._changes, self._changed = anyio.create_memory_object_stream[None](1)
        hub.on_tools_changed.append(self._note_change)
        self._sessions = StreamableHTTPSessionManager(
            self.front.server, max_request_body_size=hub.config.hub.http.body_bytes
        )

    async def _task_of(self, context: Context) -> TaskScope:
        headers = context.request.headers if context.request is not None else {}
        named = headers.get(TASK_HEADER)
        session = headers.get(SESSION_HEADER)
        task_id = named or (_task_of_session(session) if session else COMMON_TASK)
        return await self._hub.ensure_task(task_id, lease=self._lease)

    def _note_change(self, server: str) -> None:
        try:
            self._changes.send_nowait(None)
        except anyio.WouldBlock:
            pass  # one is pending already; clients list everything again anyway

    async def _announce(self) -> None:
        async for _ in self._changed:
            await self.front.announce_change()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        with self._changes, self._changed:
            async with self._sessions.run(), anyio.create_task_group() as tasks:
                tasks.start_soon(self._announce)
                yield
                tasks.cancel_scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        named, session = headers.get(TASK_HEADER), headers.get(SESSION_HEADER)
        try:
            check_task_id(named or (_task_of_session(session) if session else COMMON_TASK))
        except ConfigError as exc:
            await error_response(exc)(scope, receive, send)
            return
        await self._sessions.handle_request(scope, receive, send)
        if scope["method"] == "DELETE" and session:
            await self._hub.close_task(_task_of_session(session))


def _task_of_session(session: str) -> str:
    return f"{COMMON_TASK}-{session}"


class Application:
    """What `toolhub serve` runs. Enter `running()` before serving it."""

    def __init__(self, hub: Hub, *, token: str | None, allow_inline: bool, lease: float | None = None) -> None:
        self._hub = hub
        lease = hub.config.limits.task_lease_s if lease is None else lease
        self.is_ready = False
        self.mcp = HubFront(hub, lease=hub.config.limits.task_lease_s if math.isinf(lease) else lease)
        api = TaskApi(hub, allow_inline=allow_inline, lease=lease).routes()
        self.doors: list[Door] = []
        routes: list[Route | Mount] = [
            *api,
            openapi_route(api, __version__),
            metrics_route(hub, self.doors),
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route(MCP_PATH, _Endpoint(self.mcp)),
        ]
        self._starlette = Starlette(routes=routes)
        self._drain = Drain(Guard(self._starlette, token=token), standing_path=MCP_PATH)
        self.asgi: ASGIApp = self._drain

    async def _healthz(self, request: Request) -> Response:
        return json_response({"status": "ok", "pid": os.getpid(), "version": __version__})

    async def _readyz(self, request: Request) -> Response:
        return json_response({"ready": self.is_ready}, 200 if self.is_ready else 503)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for open_door in find_doors():
                if (door := await stack.enter_async_context(open_door(self._hub))) is not None:
                    self.doors.append(door)
                    self._starlette.router.routes.insert(0, Mount(door.path, door.app))  # the busiest
            await stack.enter_async_context(self.mcp.running())
            self.is_ready = True
            try:
                yield
            finally:
                self.is_ready = False

    def end_streams(self) -> None:
        """End what clients hold open for notifications; calls go on."""
        self.is_ready = False
        self.mcp.front.end_streams()
        self._drain.end_streams()

    def end_requests(self) -> None:
        """End every request that still runs, with an answer."""
        self._drain.end_all()


class _Endpoint:
    """Starlette takes a class instance as a raw ASGI endpoint; a function it would call with a Request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
