"""Who may use the doors. Wraps the whole application, so that no route can forget it.

With a token: every request but the health checks must carry it. Without one: the bind is loopback or a unix socket, and
a web page must not be able to reach it through its visitor's browser, so `Host` and `Origin` have to be loopback names.
The unix socket needs no token: its file mode (0600) is the check.
"""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from toolhub.errors import Unauthorized
from toolhub.wire import error_to_wire

OPEN_PATHS = frozenset({"/healthz", "/readyz"})


def is_loopback(host: str) -> bool:
    """Whether a name or address leads to this machine only. `127.0.0.1.example.org` leads anywhere."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware. `token` None means a loopback bind without one."""

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = None if scope["type"] != "http" or scope["path"] in OPEN_PATHS else self._refusal(scope)
        if reason is None:
            await self._app(scope, receive, send)
            return
        refusal = JSONResponse(
            {"error": error_to_wire(Unauthorized(reason))},
            status_code=401 if self._token else 403,
            headers={"WWW-Authenticate": "Bearer"} if self._token else {},
        )
        await refusal(scope, receive, send)

    def admits(self, scope: Scope) -> bool:
        """Whether who asks may see more than that the hub is there."""
        return self._refusal(scope) is None

    def _refusal(self, scope: Scope) -> str | None:
        if _is_unix(scope):
            return None
        headers = Headers(scope=scope)
        if self._token is not None:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), self._token.encode()):
                return None
            return "missing or wrong bearer token; set TOOLHUB_TOKEN or pass --token to the client"
        host = headers.get("host", "")
        if "@" in host or not is_loopback(_hostname("//" + host)):
            return "the Host header is not a loopback name; start the hub with --token to serve other names"
        if (origin := headers.get("origin")) is not None and not is_loopback(_hostname(origin)):
            return "requests from web pages of other origins are refused; start the hub with --token"
        return None


def _is_unix(scope: Scope) -> bool:
    """uvicorn reports (path, None) as the server of a unix socket."""
    server = scope.get("server")
    return server is not None and server[1] is None


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
