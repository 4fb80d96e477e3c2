"""The application: every frontend over one hub, behind one guard."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from toolhub import __version__
from toolhub.extensions import Frontend, find_extensions
from toolhub.hub import Hub
from toolhub.model import Json
from toolhub.serve.api import TaskApi
from toolhub.serve.drain import Drain
from toolhub.serve.guard import MCP_PATHS, Guard
from toolhub.serve.mcp.http import McpEndpoint
from toolhub.serve.metrics import metrics_route
from toolhub.serve.openapi import openapi_route
from toolhub.serve.responses import json_response
from toolhub.serve.rollouts import Rollouts

logger = logging.getLogger(__name__)


class Application:
    """The ASGI application of `toolhub serve`. Enter `running()` before serving it."""

    def __init__(self, hub: Hub, *, token: str | None, allow_inline: bool, lease: float | None = None) -> None:
        self._hub = hub
        lease = hub.config.limits.task_lease_s if lease is None else lease
        self.is_ready = False
        self.mcp = McpEndpoint(hub, lease=hub.config.limits.task_lease_s if math.isinf(lease) else lease)
        rollouts = Rollouts(hub, lease=lease)
        api = [*TaskApi(hub, allow_inline=allow_inline, lease=lease).routes(), *rollouts.routes()]
        self.frontends: list[Frontend] = []
        routes: list[Route | Mount] = [
            *api,
            openapi_route(api, __version__),
            metrics_route(hub, self.frontends),
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
        ]
        self._router = Router(routes)
        self._guard = Guard(self._route, token=token, rollouts=rollouts, allowed_origins=hub.config.hub.allowed_origins)
        self._drain = Drain(self._guard, stream_paths=MCP_PATHS)
        self.asgi = _readable_by_pages(self._drain, hub.config.hub.allowed_origins)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """MCP has one path. To look for its route would cost a tenth of a call."""
        await (self.mcp if scope["path"] in MCP_PATHS else self._router)(scope, receive, send)

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
            for open_frontend in find_extensions("frontend"):
                if (frontend := await stack.enter_async_context(open_frontend(self._hub))) is not None:
                    self.frontends.append(frontend)
                    # First, because the most requests go there.
                    self._router.routes.insert(0, Mount(frontend.path, frontend.app))
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
        self.mcp.end_subscriptions()
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
