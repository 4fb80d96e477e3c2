"""Authentication. It wraps the whole application, so that no route can forget it.

With a token, every request except the health checks must carry it. Without a token the hub listens only on loopback,
and a web page must not reach it through its visitor's browser. So `Host` must be a loopback name, and requests of a web
page are refused unless its origin is one of `hub.allowed_origins`. Browsers send `Origin` and `Sec-Fetch-Site`; other
clients send neither. The unix socket needs no token: its file mode (0600) protects it.

A rollout's token opens `/mcp` and nothing else, on every listener, and there only the task of its rollout. Clients that
take no headers can put it into the address, as the password (`http://rollout:TOKEN@host:8765/mcp`).

A body must be JSON with the JSON content type, with a token or without. A page may send a body of another type to a
foreign host without a preflight request.
"""

from __future__ import annotations

import base64
import functools
import hmac
import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from toolhub.errors import Unauthorized
from toolhub.serve.rollouts import TOKEN_PREFIX, Rollouts
from toolhub.wire import error_to_wire

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
MCP_PATHS = ("/mcp", "/mcp/")
ONLY_TASK = "toolhub.only_task"
"""In the scope of a request with a rollout's token: the id of the only task that it may use."""
# Sec-Fetch-Site of requests that come from no other site: the address bar, and pages of the hub itself (it has none).
_OWN_SITES = frozenset({"none", "same-origin"})


def is_loopback(host: str) -> bool:
    """Whether a name or address always leads to this machine. `127.0.0.1.example.org` does not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware. token: None: the hub listens on loopback without a token."""

    def __init__(
        self, app: ASGIApp, *, token: str | None, rollouts: Rollouts, allowed_origins: Collection[str] = ()
    ) -> None:
        self._app = app
        self._token = token
        self._rollouts = rollouts
        self._allowed_origins = frozenset(allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            refusal = self._refusal(scope) or _refusal_of_body(Headers(scope=scope))
        await (refusal or self._app)(scope, receive, send)

    def admits(self, scope: Scope) -> bool:
        """Whether the client may use the hub."""
        return self._reason(scope) is None

    def _refusal(self, scope: Scope) -> Response | None:
        reason = self._reason(scope)
        if reason is None:
            return None
        return JSONResponse(
            {"error": error_to_wire(Unauthorized(reason))},
            status_code=401 if self._token else 403,
            headers={"WWW-Authenticate": "Bearer"} if self._token else {},
        )

    def _reason(self, scope: Scope) -> str | None:
        """Return why a request is refused, as a message for the client; None if it is allowed."""
        headers = Headers(scope=scope)
        scheme, _, given = headers.get("authorization", "").partition(" ")
        token = _password(given) if scheme.lower() == "basic" else given
        if token.startswith(TOKEN_PREFIX):
            return self._reason_of_rollout(scope, token)
        if _is_unix(scope):
            return None
        if self._token is not None:
            if scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), self._token.encode()):
                return None
            return "missing or wrong bearer token; set TOOLHUB_TOKEN, or pass --token-file to the client"
        host = headers.get("host", "")
        if not _is_loopback_host(host):
            return "the Host header is not a loopback name; start the hub with --token-file to serve other names"
        origin = headers.get("origin")
        if origin in self._allowed_origins or origin == f"http://{host}":  # a page of the hub itself
            return None
        if origin is not None or headers.get("sec-fetch-site", "none") not in _OWN_SITES:
            return "requests from web pages are refused; list the page's origin in hub.allowed_origins, or use a token"
        return None

    def _reason_of_rollout(self, scope: Scope, token: str) -> str | None:
        if scope["path"] not in MCP_PATHS:
            return "a rollout's token opens only /mcp; the rest of the hub needs the hub's own token"
        scope[ONLY_TASK] = self._rollouts.task_of(token)
        if scope[ONLY_TASK] is None:
            return "the rollout of this token has ended, or the token is wrong; open another rollout"
        return None


def _password(credentials: str) -> str:
    """Return the password of HTTP's Basic scheme; empty if it cannot be read."""
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _refusal_of_body(headers: Headers) -> Response | None:
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if not has_body or headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json":
        return None
    message = "a body must be JSON; send it with the header 'Content-Type: application/json'"
    return JSONResponse({"error": {"type": "BadRequest", "message": message}}, status_code=415)


def _is_unix(scope: Scope) -> bool:
    """uvicorn reports (path, None) as the server of a unix socket."""
    server = scope.get("server")
    return server is not None and server[1] is None


@functools.lru_cache(maxsize=64)
def _is_loopback_host(host: str) -> bool:
    """Whether the value of the header Host names this machine. Clients repeat it with each request."""
    try:
        return "@" not in host and is_loopback(urlsplit("//" + host).hostname or "")
    except ValueError:
        return False
