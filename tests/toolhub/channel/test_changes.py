"""How the hub learns that a list of a server of revision 2026-07-28 has changed, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import anyio
import pytest
from in_memory_hub import virtual_time
from mcp import MCPError

from toolhub.channel.base import ExitInfo
from toolhub.channel.jsonrpc.peer import Peer, RawNotified
from toolhub.channel.mcp import McpChannel
from toolhub.model import Json, ServerInfo

pytestmark = pytest.mark.anyio

MODERN = ServerInfo("s", "1", "2026-07-28", {"tools": {"listChanged": True}, "prompts": {}})


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time()


class Server:
    """Answers `tools/list`. It ends a subscription at once, or, with `refuses`, refuses it."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.ended = anyio.Event()
        self.on_raw_notification: RawNotified | None = None
        self.subscriptions: list[Any] = []
        self._refuses = refuses

    async def request(self, method: str, params: Mapping[str, Any] | None, opts: Any = None) -> Json:
        if method == "tools/list":
            return {"tools": []}
        self.subscriptions.append((params or {})["notifications"])
        if self._refuses:
            raise MCPError(-32601, "Method not found")
        return {}


async def changes_within(seconds: float, server: Server, info: ServerInfo = MODERN) -> int:
    """How often the hub hears of changed tools after it has listed them."""
    heard: list[None] = []
    async with anyio.create_task_group() as tasks:
        channel = McpChannel("s", cast(Peer, server), evidence=ExitInfo, tasks=tasks)
        channel.info, channel.on_tools_changed = info, lambda: heard.append(None)
        await channel.list_tools()
        await channel.list_tools()
        await anyio.sleep(seconds)
        tasks.cancel_scope.cancel()
    return len(heard)


async def test_a_subscription_that_ends_is_renewed_and_what_may_have_changed_is_told() -> None:
    server = Server()
    assert await changes_within(12, server) == 2
    assert server.subscriptions == [{"toolsListChanged": True}] * 3


async def test_a_server_that_knows_no_subscriptions_is_asked_once() -> None:
    server = Server(refuses=True)
    assert await changes_within(60, server) == 0
    assert len(server.subscriptions) == 1


@pytest.mark.parametrize(
    "info",
    [ServerInfo("s", "1", "2025-11-25", MODERN.capabilities), ServerInfo("s", "1", "2026-07-28", {"tools": {}})],
    ids=["handshake", "lists do not change"],
)
async def test_only_a_modern_server_whose_lists_change_is_asked(info: ServerInfo) -> None:
    server = Server()
    await changes_within(60, server, info)
    assert server.subscriptions == []
