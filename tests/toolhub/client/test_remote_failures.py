"""What the client says when the hub is not there, goes away, or falls silent."""

from __future__ import annotations

import http.server
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from hub_process import HubProcess, echo_server, free_port
from real_processes import eventually

import toolhub
from toolhub import HubClosed, SessionLost
from toolhub.client import HubUnreachable, RemoteTask
from toolhub.client import task as task_module

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ledger_task(own_hub_process: HubProcess, tmp_path: Path) -> AsyncIterator[RemoteTask]:
    """A task whose `ledger` tool notes that it was called, and then waits for long."""
    server = echo_server(LEDGER=str(tmp_path / "ledger"), LEDGER_DELAY="60")
    async with toolhub.connect(own_hub_process.url) as hub, hub.task(servers={"echo": server}) as task:
        yield task


async def test_a_missing_socket_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(HubUnreachable, match=r"no hub answers at unix://.*/none.sock .*`toolhub serve`"):
        await toolhub.connect(f"{tmp_path}/none.sock").open_task()


async def test_a_refused_port_is_named_with_the_way_out() -> None:
    port = free_port()
    with pytest.raises(HubUnreachable, match=rf"no hub answers at http://127.0.0.1:{port} .*`toolhub serve`"):
        await toolhub.connect(f"http://127.0.0.1:{port}").statistics()


async def test_a_hub_that_dies_during_a_call_leaves_the_outcome_open(
    ledger_task: RemoteTask, own_hub_process: HubProcess, tmp_path: Path
) -> None:
    async def kill_when_called() -> None:
        await eventually((tmp_path / "ledger").exists)
        own_hub_process.kill()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill_when_called)
            with pytest.raises(SessionLost, match="went away .*'ledger' may or may not") as caught:
                await ledger_task.call("echo", "ledger", {"key": "once"})
    assert caught.value.sent == "maybe"


async def test_after_its_hub_died_the_next_call_was_not_sent(
    ledger_task: RemoteTask, own_hub_process: HubProcess
) -> None:
    await ledger_task.call("echo", "pid")
    own_hub_process.kill()
    with pytest.raises(HubUnreachable):
        await ledger_task.call("echo", "pid")


async def test_a_frozen_hub_is_given_up_after_the_timeout_and_a_margin(
    ledger_task: RemoteTask, own_hub_process: HubProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_module, "MARGIN_S", 0.2)
    await ledger_task.call("echo", "pid")
    own_hub_process.freeze()
    with pytest.raises(HubClosed, match="did not answer for 0.3 s"):
        await ledger_task.call("echo", "pid", timeout=0.1)
    own_hub_process.kill()


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_cancelling_a_call_cancels_it_on_the_server(
    ledger_task: RemoteTask, tmp_path: Path, is_streamed: bool
) -> None:
    ledger = tmp_path / "ledger"

    async def ignore(*_: object) -> None: ...

    async def call() -> None:
        await ledger_task.call("echo", "ledger", {"key": "x"}, on_progress=ignore if is_streamed else None)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await eventually(ledger.exists)
            tasks.cancel_scope.cancel()
        await eventually(lambda: "cancelled" in ledger.read_text())


async def test_something_else_at_the_address_is_not_taken_for_a_hub() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(HubClosed, match="is not a toolhub hub: HTTP 501"):
                await toolhub.connect(f"http://127.0.0.1:{server.server_port}").open_task()
        finally:
            server.shutdown()
