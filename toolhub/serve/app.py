"""The application: every frontend over one hub, behind one guard."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import anyio.abc
from mcp.server.context import CallNext, HandlerResult
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolhub import __version__
from toolhub.errors import ToolhubError
from toolhub.extensions import Frontend, find_frontends
from toolhub.hub import Hub
from toolhub.model import Json
from toolhub.serve.api import TaskApi
from toolhub.serve.drain import Drain
from toolhub.serve.guard import Guard
from toolhub.serve.mcp_gateway import Context, McpGateway
from toolhub.serve.metrics import metrics_route
from toolhub.serve.openapi import openapi_route
from toolhub.serve.responses import error_response, json_response
from toolhub.task import HubTask
from toolhub.task_ids import check_task_id

MCP_PATH = "/mcp"
TASK_HEADER = "x-toolhub-task"
SESSION_HEADER = "mcp-session-id"
VERSION_HEADER = "mcp-protocol-version"
# The key of the task in a request's ASGI scope.
TASK_KEY = "toolhub.task"
# The task of MCP clients that neither name a task nor have a session (revision 2026-07-28 has no sessions).
COMMON_TASK = "mcp"

logger = logging.getLogger(__name__)


class HubGateway:
    """The MCP gateway of a hub: one task per value of the task header, else one per MCP session.

    Every request holds its task's lease while it is served. So a ping renews the lease, and an open stream keeps it.
    A session ends with its task. When a task that the session has used is closed, the session is answered with 404, and
    its client initializes a new one. An old session's id never gets a new task.
    """

    def __init__(self, hub: Hub, *, lease: float) -> None:
        self._hub = hub
        self._lease = lease
        self.gateway = McpGateway(_task_of, version=__version__, prefix=hub.config.hub.tool_prefix)
        self.gateway.server.middleware.append(self._note_session)
        self._changes, self._changed = anyio.create_memory_object_stream[None](1)
        hub.on_tools_changed(self._note_change)
        self._sessions = StreamableHTTPSessionManager(
            self.gateway.server, session_idle_timeout=lease, max_request_body_size=hub.config.hub.http.body_bytes
        )
        self._used: dict[str, dict[str, HubTask]] = {}
        """The tasks that each session has used, by the ids of session and task."""
        self._closing: anyio.abc.TaskGroup | None = None

    async def _note_session(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        connection = ctx.session._connection
        session = connection.session_id
        if ctx.method == "initialize" and session is not None and session not in self._used:
            self._used[session] = {}
            connection.exit_stack.callback(self._forget, session)
        return await call_next(ctx)

    def _forget(self, session: str) -> None:
        """Forget a session that has ended: by DELETE, after its lease without requests, or with its task."""
        del self._used[session]
        assert self._closing is not None
        self._closing.start_soon(self._hub.close_task, _task_of_session(session))

    async def _task_for(self, scope: Scope) -> HubTask | None:
        """Return the task of a request, opened if needed; None if the request opens or ends a session.

        Raises ConfigError for an id that is not allowed, Overloaded, HubClosed.
        """
        headers = Headers(scope=scope)
        named, session = headers.get(TASK_HEADER), headers.get(SESSION_HEADER, "")
        if named:
            check_task_id(named)
        version = headers.get(VERSION_HEADER)
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:  # such requests belong to no session
            return await self._hub.ensure_task(named or COMMON_TASK, lease=self._lease)
        used = self._used.get(session)
        if used is None or scope["method"] == "DELETE":
            return None
        task_id = named or _task_of_session(session)
        task = used.get(task_id)
        if task is None:
            task = used[task_id] = await self._hub.ensure_task(task_id, lease=self._lease)
        elif not self._hub.is_open(task):
            await self._end_session(scope)
            return None
        return task

    async def _end_session(self, scope: Scope) -> None:
        """End the session of a request, as if its client had asked for it."""

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            pass

        await self._sessions.handle_request({**scope, "method": "DELETE"}, receive, send)

    def _note_change(self, server: str) -> None:
        try:
            self._changes.send_nowait(None)
        except anyio.WouldBlock:
            pass  # an announcement is pending already, and clients list all tools after it

    async def _announce(self) -> None:
        async for _ in self._changed:
            await self.gateway.announce_change()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        with self._changes, self._changed:
            async with anyio.create_task_group() as self._closing:
                async with self._sessions.run(), anyio.create_task_group() as tasks:
                    tasks.start_soon(self._announce)
                    yield
                    tasks.cancel_scope.cancel()
                self._closing.cancel_scope.cancel()  # the hub closes every task when it ends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            task = await self._task_for(scope)
        except ToolhubError as exc:
            await error_response(exc)(scope, receive, send)
            return
        if task is None:
            await self._sessions.handle_request(scope, receive, send)
            return
        with task.in_use():
            await self._sessions.handle_request({**scope, TASK_KEY: task}, receive, send)


async def _task_of(context: Context) -> HubTask:
    """Return the task that `HubGateway` found for a request."""
    assert context.request is not None
    task: HubTask = context.request.scope[TASK_KEY]
    return task


def _task_of_session(session: str) -> str:
    return f"{COMMON_TASK}-{session}"


class Application:
    """The ASGI application of `toolhub serve`. Enter `running()` before serving it."""

    def __init__(self, hub: Hub, *, token: str | None, allow_inline: bool, lease: float | None = None) -> None:
        self._hub = hub
        lease = hub.config.limits.task_lease_s if lease is None else lease
        self.is_ready = False
        self.mcp = HubGateway(hub, lease=hub.config.limits.task_lease_s if math.isinf(lease) else lease)
        api = TaskApi(hub, allow_inline=allow_inline, lease=lease).routes()
        self.frontends: list[Frontend] = []
        routes: list[Route | Mount] = [
            *api,
            openapi_route(api, __version__),
            metrics_route(hub, self.frontends),
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route(MCP_PATH, _Endpoint(self.mcp)),
        ]
        self._starlette = Starlette(routes=routes)
        self._guard = Guard(self._starlette, token=token, allowed_origins=hub.config.hub.allowed_origins)
        self._drain = Drain(self._guard, stream_path=MCP_PATH)
        self.asgi = _readable_by_pages(self._drain, hub.config.hub.allowed_origins)

    async def _healthz(self, request: Request) -> Response:
        return json_response({"status": "ok", "pid": os.getpid(), "version": __version__})

    async def _readyz(self, request: Request) -> Response:
        """Report whether requests are accepted. Clients that may use the hub also see the servers that do not work."""
        answer: Json = {"ready": self.is_ready}
        if self._guard.admits(request.scope):
            answer["broken_servers"] = [dataclasses.asdict(server) for server in self._hub.events.broken]
        return json_response(answer, 200 if self.is_ready else 503)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for open_frontend in find_frontends():
                if (frontend := await stack.enter_async_context(open_frontend(self._hub))) is not None:
                    self.frontends.append(frontend)
                    # First, because the most requests go there.
                    self._starlette.router.routes.insert(0, Mount(frontend.path, frontend.app))
            await stack.enter_async_context(self.mcp.running())
            self.is_ready = True
            try:
                yield
            finally:
                self.is_ready = False

    @property
    def requests_in_flight(self) -> int:
        """The number of requests that are being answered, without the streams that clients hold open."""
        return self._drain.in_flight

    def end_streams(self) -> None:
        """End the streams that clients hold open for notifications. Calls go on."""
        self.is_ready = False
        self.mcp.gateway.end_streams()
        self._drain.end_streams()

    def end_requests(self) -> None:
        """End every request that still runs. Each gets an answer."""
        self._drain.end_all()


def _readable_by_pages(app: ASGIApp, origins: list[str]) -> ASGIApp:
    """Answer the CORS preflight requests of browsers, so that pages of these origins can use the hub."""
    if not origins:
        return app
    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=["GET", "POST", "DELETE"], allow_headers=["*"], expose_headers=["*"]
    )


class _Endpoint:
    """A raw ASGI endpoint. Starlette would call a function with a Request, but takes an instance as ASGI app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
