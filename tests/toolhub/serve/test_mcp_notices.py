"""What travels beside a call over the MCP gateway: progress, logs, cancellation, changed tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.subscriptions import ToolsListChanged
from mcp_clients import MODES, mcp_client, text_of
from mcp_types import ToolListChangedNotification
from real_processes import eventually
from served_hub import ServedHub

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("mode", MODES)]


class Listener:
    """Notes what reaches the client; `result` is noted as well, so that the order can be seen."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.tools_changed = anyio.Event()

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.seen.append((progress, total))

    async def on_log(self, params: Any) -> None:
        self.seen.append((params.level, params.logger, params.data))

    async def on_message(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.tools_changed.set()


async def test_progress_reaches_the_client_in_order(hub: ServedHub, mode: str) -> None:
    listener = Listener()
    async with mcp_client(hub, mode) as client:
        result = await client.call_tool("progress", {"steps": 5}, progress_callback=listener.on_progress)
        assert text_of(result) == "5 steps done"
        await eventually(lambda: len(listener.seen) == 5)
    assert listener.seen == [(step, 5) for step in range(1, 6)]


async def test_logs_reach_the_client_that_wants_them(hub: ServedHub, mode: str) -> None:
    listener = Listener()
    async with mcp_client(hub, mode, logging_callback=listener.on_log, log_level="info") as client:
        await client.call_tool("progress", {"steps": 0})
        await eventually(lambda: listener.seen)
    assert listener.seen == [("info", "echo", "0 steps")]


async def test_logs_do_not_reach_a_modern_client_that_did_not_ask(hub: ServedHub, mode: str) -> None:
    """In the handshake era there is no asking: servers send them."""
    listener = Listener()
    async with mcp_client(hub, mode, logging_callback=listener.on_log) as client:
        await client.call_tool("progress", {"steps": 1}, progress_callback=listener.on_progress)
        await eventually(lambda: (1, 1) in listener.seen)
    assert (("info", "echo", "1 steps") in listener.seen) == (mode == "legacy")


async def test_cancelling_in_the_client_cancels_in_the_server(hub: ServedHub, mode: str, ledger: Path) -> None:
    ledger.write_text("")
    async with mcp_client(hub, mode) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "ledger", {"key": "begun"})
            await eventually(lambda: ledger.read_text() == "begun\n")
            tasks.cancel_scope.cancel()
        await eventually(lambda: "cancelled" in ledger.read_text())
        assert text_of(await client.call_tool("echo", {"text": "still there"})) == "still there"


async def wait_for_change(client: Client, listener: Listener, name: str, *, is_modern: bool) -> None:
    """Let a server add a tool and wait until the client has been told."""
    with anyio.fail_after(30):
        if not is_modern:
            await client.call_tool("add_tool", {"name": name})
            await listener.tools_changed.wait()
            return
        async with client.listen(tools_list_changed=True) as changes:
            await client.call_tool("add_tool", {"name": name})
            assert isinstance(await anext(aiter(changes)), ToolsListChanged)


async def test_changed_tools_are_announced_and_listed(hub: ServedHub, mode: str) -> None:
    listener, name = Listener(), f"new_{mode}"
    async with mcp_client(hub, mode, message_handler=listener.on_message) as client:
        assert name not in [tool.name for tool in (await client.list_tools()).tools]
        await wait_for_change(client, listener, name, is_modern=mode == "auto")
        listed = await client.list_tools(cache_mode="refresh")
        assert name in [tool.name for tool in listed.tools]
        assert text_of(await client.call_tool(name)) == name
