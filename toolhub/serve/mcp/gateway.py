"""Answers the requests of MCP clients: the path of a request after its transport and before its server.

A task with one server is transparent: every request goes to that server as it came, and its answer comes back as it is.
Only `initialize`, `server/discover` and `ping` are answered here, the first two from the server's own answer. With
several servers the lists are joined, and a name, a URI or a reference says which server a request is for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
from mcp_types import PROTOCOL_VERSION_META_KEY, SERVER_INFO_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from toolhub import __version__
from toolhub.channel.base import Refused
from toolhub.channel.mcp import SUBSCRIPTION_META_KEY
from toolhub.config.models import HubSettings
from toolhub.errors import ToolhubError, ToolNotFound
from toolhub.model import Json, ServerInfo
from toolhub.serve.mcp.checks import check_headers, check_modern
from toolhub.serve.mcp.client import INTERNAL_ERROR, INVALID_PARAMS, ClientRequest, GatewayTask, McpClient
from toolhub.serve.mcp.handles import call_tool
from toolhub.serve.mcp.merged import MergedServers
from toolhub.serve.mcp.questions import PendingQuestions
from toolhub.tool_names import SEPARATOR
from toolhub.wire import error_to_wire

if TYPE_CHECKING:
    from toolhub.serve.mcp.search import ToolSearch

SERVER_INFO = {"name": "toolhub", "version": __version__}
# For errors of the hub itself: a server that does not start, a full queue, a deadline.
HUB_ERROR = -32000

logger = logging.getLogger(__name__)


class Gateway:
    """One per hub, or per process of `toolhub stdio`. tasks: requests go on in it while clients answer questions."""

    def __init__(self, settings: HubSettings, tasks: anyio.abc.TaskGroup) -> None:
        self._prefix = settings.tool_prefix
        self._questions = PendingQuestions(tasks)
        self._merged = MergedServers(self._prefix)
        self._search: ToolSearch | None = None
        if settings.tools == "search":
            from toolhub.serve.mcp.search import ToolSearch  # imports SQLite, which takes 20 ms

            self._search = ToolSearch(self._merged)
        self._subscriptions: dict[ClientRequest, anyio.CancelScope] = {}

    def end_subscriptions(self) -> None:
        """End the subscriptions of clients of revision 2026-07-28; each gets its answer."""
        for request in list(self._subscriptions):
            self._subscriptions.pop(request).cancel()

    # --- requests ---------------------------------------------------------------------------------------------------

    async def respond(self, request: ClientRequest) -> Json:
        """Answer a request; return the JSON-RPC response."""
        try:
            outcome: Json = {"result": await self._answer(request)}
        except Refused as exc:
            outcome = {"error": error_object(exc.code, exc.message, exc.data)}
        except ToolNotFound as exc:
            # In search mode the model has chosen the name, so it is told in a result, which it reads.
            is_read = self._search is not None and request.method == "tools/call"
            outcome = _failure(request, exc) if is_read else {"error": error_object(INVALID_PARAMS, str(exc))}
        except ToolhubError as exc:
            outcome = _failure(request, exc)
        except Exception:
            logger.exception("the answer to %s failed", request.method)
            outcome = {"error": error_object(INTERNAL_ERROR, "toolhub failed; its log says why")}
        return {"jsonrpc": "2.0", "id": request.id, **outcome}

    async def _answer(self, request: ClientRequest) -> Json:
        if request.era == "modern":
            check_modern(request.method, request.version, request.params)
        match request.method:
            case "initialize":
                return await self._initialize(request)
            case "ping":
                return {}
            case "server/discover":
                return await self._discover(request)
        if request.method == "subscriptions/listen":
            return await self._listen(request)
        if self._search is not None and request.method in ("tools/list", "tools/call"):
            return await self._search.answer(request, self._pass_on)
        return await self._pass_on(request)

    async def _pass_on(self, request: ClientRequest) -> Json:
        if self._questions.may_arise(request):
            return await self._questions.answer(request, self._relay)
        return await self._relay(request)

    async def _relay(self, request: ClientRequest) -> Json:
        uri = (request.params or {}).get("uri")
        if request.client is not None and request.method == "resources/subscribe" and isinstance(uri, str):
            request.client.check_subscription(uri)
        # In search mode the gateway knows the names of a single server too: a wrong one leads to near ones.
        is_searched = self._search is not None and request.method == "tools/call"
        server = None if is_searched else self._only_server(request)
        result = await (self._merged.answer(request) if server is None else relay_to(server, request))
        remember(request, result)
        return result

    async def _listen(self, request: ClientRequest) -> Json:
        """Answer a subscription: the stream of its answer lasts until the client, its server or the hub ends it."""
        server = self._only_server(request)
        with anyio.CancelScope() as scope:
            self._subscriptions[request] = scope
            try:
                if server is not None and (await request.task.describe(server, request.relayed())).era == "modern":
                    return await request.task.listen(server, request.relayed())
                await self._merged.listen(request)
            finally:
                self._subscriptions.pop(request, None)
        return {"resultType": "complete", "_meta": {SUBSCRIPTION_META_KEY: request.id}}

    async def _initialize(self, request: ClientRequest) -> Json:
        assert request.client is not None
        request.client.introduce(request.params or {})
        server = self._only_server(request)
        if server is None:
            told = await self._merged.describe(request)
        else:
            told = as_handshake(await request.task.describe(server, request.relayed(), saved=True))
        asked = str((request.params or {}).get("protocolVersion"))
        known = asked if asked in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
        request.client.version = min(known, str(told.get("protocolVersion", known)))
        return {**told, "protocolVersion": request.client.version, "serverInfo": SERVER_INFO}

    async def _discover(self, request: ClientRequest) -> Json:
        server = self._only_server(request)
        if server is None:
            told = as_modern_hello(await self._merged.describe(request))
        else:
            info = await request.task.describe(server, request.relayed(), saved=True)
            told = info.hello if info.era == "modern" else as_modern_hello(info.hello)
        return {**told, "_meta": {**(told.get("_meta") or {}), SERVER_INFO_META_KEY: SERVER_INFO}}

    def _only_server(self, request: ClientRequest) -> str | None:
        """Return the server whose requests pass unchanged: the client's only one, unless its tools are renamed."""
        return request.servers[0] if len(request.servers) == 1 and self._prefix != "always" else None

    # --- notifications ----------------------------------------------------------------------------------------------

    async def notified(self, task: GatewayTask, client: McpClient, method: str, params: Json | None) -> None:
        """Take a notification of a client of the handshake era. Servers of the modern era get none."""
        if method == "notifications/cancelled":
            client.cancel(params)
        elif method != "notifications/initialized":  # toolhub has sent its own
            for server in task.servers:
                await task.notify(server, method, params, client)


async def relay_to(server: str, request: ClientRequest) -> Json:
    """Pass a request on to its server, unchanged but for a name that begins with the server's."""
    params, prefix = request.params, server + SEPARATOR
    if request.method in ("tools/call", "prompts/get") and str((params or {}).get("name")).startswith(prefix):
        params = {**(params or {}), "name": str((params or {})["name"]).removeprefix(prefix)}
    if request.method == "tools/call":
        await check_headers(server, str((params or {}).get("name")), request)
        return await call_tool(server, request, params)
    if (
        request.method == "logging/setLevel"
        and (await request.task.describe(server, request.relayed())).era == "modern"
    ):
        return {}  # it is told with each request
    result = await request.task.relay(server, request.relayed(params))
    if request.method == "tools/list" and isinstance(result.get("tools"), list):
        return {**result, "tools": request.task.offered(server, result["tools"])}
    return result


def remember(request: ClientRequest, result: Json) -> None:
    """Note what a client has asked for and a restarted server must be told again."""
    client, uri = request.client, (request.params or {}).get("uri")
    if client is None:
        return
    if request.method == "resources/subscribe" and isinstance(uri, str):
        client.subscriptions.add(uri)
    elif request.method == "resources/unsubscribe" and isinstance(uri, str):
        client.subscriptions.discard(uri)
    elif request.method == "logging/setLevel":
        client.log_level = (request.params or {}).get("level")


def as_handshake(info: ServerInfo) -> Json:
    """Return the result of `initialize`, made from `server/discover` where the server is modern."""
    if info.era == "handshake":
        return info.hello
    kept: Json = {key: info.hello[key] for key in ("capabilities", "instructions") if key in info.hello}
    return {"capabilities": {}, **kept}


def as_modern_hello(hello: Mapping[str, Any]) -> Json:
    """Return the result of `server/discover`, made from that of `initialize`."""
    kept: Json = {key: hello[key] for key in ("capabilities", "instructions") if hello.get(key) is not None}
    return {
        "resultType": "complete",
        "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
        "ttlMs": 0,
        "cacheScope": "private",
        **kept,
    }


def _failure(request: ClientRequest, exc: ToolhubError) -> Json:
    """Tell of a failure of the hub. That of a tool call is a result, which the model reads."""
    if request.method != "tools/call":
        return {"error": error_object(HUB_ERROR, str(exc), {"toolhub/error": error_to_wire(exc)})}
    result: Json = {"content": [{"type": "text", "text": str(exc)}], "isError": True}
    result["_meta"] = {"toolhub/error": error_to_wire(exc)}
    return {"result": result | ({"resultType": "complete"} if request.era == "modern" else {})}


def error_object(code: int, message: str, data: Any = None) -> Json:
    return {"code": code, "message": message, **({"data": data} if data is not None else {})}


def version_of(params: Json | None) -> Any:
    """Return the revision that a request names in its envelope."""
    meta = (params or {}).get("_meta")
    return meta.get(PROTOCOL_VERSION_META_KEY) if isinstance(meta, dict) else None
