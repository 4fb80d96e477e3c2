"""A client of the gateway, and one request of it.

`McpClient` is a client of the handshake era: its session lasts, so it can be notified and asked at any time. A request
of revision 2026-07-28 stands alone and has no `McpClient`.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from toolhub.channel.base import Refused
from toolhub.channel.bridge import hello_of
from toolhub.channel.jsonrpc.futures import Future, future_factory
from toolhub.config import ServerSpec
from toolhub.errors import ToolhubError
from toolhub.model import ClientProfile, Era, Json, Listener, RelayedRequest, ServerInfo, ToolInfo

INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32600, -32601, -32602, -32603
CLIENT_GONE = -32000
# What a client has subscribed to is kept, for servers that are started again.
MOST_SUBSCRIPTIONS, _LONGEST_URI = 1000, 8192


class Output(Protocol):
    """A stream to a client. Nothing here waits for the client to read."""

    def send(self, message: Json) -> None:
        """Send a message. It is dropped if the client is gone or has stopped reading."""
        ...

    def close_early(self) -> None:
        """End the stream for now. The client resumes it and gets the rest."""
        ...


class McpClient:
    """A client of the handshake era. output: its stream for what belongs to no request."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.version = ""
        self.profile = ClientProfile()
        self.subscriptions: set[str] = set()
        self.log_level: str | None = None
        self.running: dict[int | str, anyio.CancelScope] = {}
        """The requests that are being answered, so that the client can cancel them."""
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[Json]] = {}

    def __repr__(self) -> str:
        return f"<McpClient {self.version} running={len(self.running)} asked={len(self._asked)}>"

    def introduce(self, hello: Json) -> None:
        """Take what the client says about itself in `initialize`."""
        self.profile = ClientProfile.of("handshake", hello)

    def check_subscription(self, uri: str) -> None:
        """Refuse one subscription too many, or one to a URI too long. Raises Refused."""
        if len(uri) > _LONGEST_URI:
            raise Refused(INVALID_PARAMS, f"the URI of a subscription may have {_LONGEST_URI} characters")
        if uri not in self.subscriptions and len(self.subscriptions) >= MOST_SUBSCRIPTIONS:
            raise Refused(
                INVALID_REQUEST,
                f"a client may subscribe to {MOST_SUBSCRIPTIONS} resources at a time; unsubscribe from some",
            )

    def notify(self, method: str, params: Json | None) -> None:
        self.output.send(notification(method, params))

    async def request(self, method: str, params: Json | None) -> Json:
        return await self.ask(self.output, method, params)

    async def ask(self, output: Output, method: str, params: Json | None) -> Json:
        """Send a request on one of the client's streams and return the result. Raises Refused."""
        number = next(self._numbers)
        answer: Future[Json] = future_factory()()
        self._asked[number] = answer
        output.send({"jsonrpc": "2.0", "id": number, **_call(method, params)})
        try:
            outcome = await answer
        except anyio.get_cancelled_exc_class():
            output.send(notification("notifications/cancelled", {"requestId": number}))
            raise
        finally:
            del self._asked[number]
        error = outcome.get("error")
        if error is not None:
            raise Refused(error.get("code", INTERNAL_ERROR), str(error.get("message")), error.get("data"))
        result = outcome.get("result")
        return result if isinstance(result, dict) else {}

    def take_answer(self, message: Json) -> None:
        """Take the client's answer to a question. Answers to nothing are dropped."""
        number = message.get("id")
        answer = self._asked.get(number) if isinstance(number, int) else None
        if answer is not None and not answer.done():
            answer.set_result(message)

    def cancel(self, params: Mapping[str, Any] | None) -> None:
        """Cancel the request that `notifications/cancelled` names."""
        number = (params or {}).get("requestId")
        scope = self.running.get(number) if isinstance(number, int | str) else None
        if scope is not None:
            scope.cancel()

    def close(self) -> None:
        """The client is gone. Its questions fail."""
        for answer in self._asked.values():
            if not answer.done():
                answer.set_result({"error": {"code": CLIENT_GONE, "message": "the client has ended its session"}})
        for scope in list(self.running.values()):
            scope.cancel()


class GatewayTask(Protocol):
    """What the gateway uses of a task: a `HubTask`, which describes the methods, or the saved answers of one."""

    id: str

    @property
    def servers(self) -> tuple[str, ...]: ...

    @property
    def specs(self) -> Mapping[str, ServerSpec]: ...

    async def describe(self, server: str, relayed: RelayedRequest, *, saved: bool = False) -> ServerInfo: ...

    async def relay(self, server: str, relayed: RelayedRequest) -> Json: ...

    async def listen(self, server: str, relayed: RelayedRequest) -> Json: ...

    async def notify(self, server: str, method: str, params: Mapping[str, Any] | None, listener: Listener) -> None: ...

    async def tools_for_client(
        self, profile: ClientProfile, servers: Collection[str] | None = None, *, fresh: bool = False
    ) -> dict[str, list[ToolInfo] | ToolhubError]: ...

    async def tool_with_headers(
        self, server: str, name: str, profile: ClientProfile, *, ask: bool
    ) -> ToolInfo | None: ...

    def offered(self, server: str, tools: list[Json]) -> list[Json]: ...


@dataclass(eq=False)
class ClientRequest:
    """One request of a client, with the stream of its answer: the `Requester` of what is relayed for it."""

    id: int | str
    method: str
    params: Json | None
    task: GatewayTask
    output: Output
    client: McpClient | None = None
    """None in the modern era."""
    version: str = ""
    headers: Mapping[str, str] | None = None
    """The headers that repeat parameters; None for a client that sends none, because it is not connected by HTTP."""
    new_task: Callable[[], Awaitable[GatewayTask]] | None = None
    """Opens a task for what must not be shared; None if `task` is the client's own."""
    ask: Callable[[str, Json | None], Awaitable[Json]] | None = None
    """How a client of revision 2026-07-28 is asked; None: not at all."""
    only: frozenset[str] | None = None
    """The servers of the task that the client may know of; None: all."""

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers that this request can reach. To the client there are no others."""
        servers = self.task.servers
        return servers if self.only is None else tuple(name for name in servers if name in self.only)

    @property
    def capabilities(self) -> Json:
        """What a client of revision 2026-07-28 says that it can be asked for."""
        capabilities: Json = hello_of(self.params)["capabilities"]
        return capabilities

    @property
    def listener(self) -> McpClient | None:
        return self.client

    @property
    def era(self) -> Era:
        return "modern" if self.client is None else "handshake"

    def notify(self, method: str, params: Json | None) -> None:
        self.output.send(notification(method, params))

    async def request(self, method: str, params: Json | None) -> Json:
        if self.client is not None:
            return await self.client.ask(self.output, method, params)
        if self.ask is None:
            raise Refused(INVALID_REQUEST, f"the client does not support {method}")
        return await self.ask(method, params)

    def close_stream(self) -> None:
        self.output.close_early()

    @property
    def profile(self) -> ClientProfile:
        client = self.client
        return client.profile if client is not None else ClientProfile.of("modern", hello_of(self.params))

    def relayed(self, params: Json | None = None, *, method: str | None = None) -> RelayedRequest:
        """Return the request for a server: as it came, or with other params."""
        sent = self.params if params is None else params
        return RelayedRequest(method or self.method, sent, self, self.profile, self.headers or {})


def _call(method: str, params: Json | None) -> Json:
    return {"method": method} if params is None else {"method": method, "params": params}


def notification(method: str, params: Json | None) -> Json:
    return {"jsonrpc": "2.0", **_call(method, params)}
