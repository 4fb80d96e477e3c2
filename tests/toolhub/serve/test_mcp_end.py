"""The end of a hub to which MCP clients are connected: they do not delay it, and their calls are answered."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from mcp import Client
from mcp_clients import MODES, mcp_client, text_of
from real_processes import eventually
from served_hub import ServedHub, served, stub, write_config

pytestmark = pytest.mark.anyio

DRAIN_S = 20


@pytest.fixture
def hub(tmp_path: Path, ledger: Path) -> Iterator[ServedHub]:
    echo = stub(env={"LEDGER": str(ledger), "LEDGER_DELAY": "0.5"})
    with served(write_config(tmp_path, servers={"echo": echo}, hub={"drain_s": DRAIN_S})) as running:
        yield running


async def listen(client: Client, listening: anyio.Event) -> None:
    async with client.listen(tools_list_changed=True) as changes:
        listening.set()
        assert [change async for change in changes] == []


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_listens_does_not_delay_the_end_and_its_call_is_answered(
    hub: ServedHub, mode: str, ledger: Path
) -> None:
    async with mcp_client(hub, mode) as client, anyio.create_task_group() as tasks:

        async def call() -> None:
            answers.append(text_of(await client.call_tool("ledger", {"key": f"begun {mode}"})))

        answers: list[str] = []
        await client.list_tools()  # or the client would do it after the call, when nobody is there any more
        listening = anyio.Event()
        if mode == "auto":
            tasks.start_soon(listen, client, listening)
            await listening.wait()
        tasks.start_soon(call)
        await eventually(lambda: f"begun {mode}" in ledger.read_text())
        hub.process.send_signal(signal.SIGTERM)
        await eventually(lambda: hub.process.poll() is not None, within=DRAIN_S / 2)
        await eventually(lambda: answers)
    assert answers == [f"begun {mode}"] and hub.process.returncode == 0
    assert not re.search("WARNING|ERROR|Traceback", hub.said), hub.said
