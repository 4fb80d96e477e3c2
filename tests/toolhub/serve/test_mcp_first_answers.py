"""What a client is told while its servers start: what they told an equal client in an earlier life of the hub."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp_clients import MODES, mcp_client, text_of
from mcp_types import ToolListChangedNotification
from real_processes import FIXTURES
from served_hub import TOOLHUB, ServedHub, environment, eventually, served, stub, write_config

pytestmark = pytest.mark.anyio

# Begins only when the file `open` is there. The file `more` adds a tool.
SLOW = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
folder = Path(__file__).parent
(folder / "begun").touch()
while not (folder / "open").exists():
    time.sleep(0.01)
from minimal import Server, text
if (folder / "broken").exists():
    sys.exit("broken")

class Slow(Server):
    def initialize(self, params):
        capabilities = {"tools": {"listChanged": True}, "prompts": {}, "resources": {}}
        return {**super().initialize(params), "capabilities": capabilities, "instructions": "Be slow."}

    def answer(self, method, params):
        lists = {
            "prompts/list": {"prompts": [{"name": "greet"}]},
            "resources/list": {"resources": [{"uri": "slow://one", "name": "one"}]},
            "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "slow://{x}", "name": "any"}]},
        }
        return {"result": lists[method]} if method in lists else super().answer(method, params)

server = Slow("slow")
server.tool("first")(lambda call: text(os.environ.get("WHO", "nobody")))
if (folder / "more").exists():
    server.tool("second")(lambda call: text("second"))
server.run()
"""


class Slow:
    """A server whose start lasts until the test opens it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "slow"
        self.folder.mkdir()
        (self.folder / "server.py").write_text(SLOW)

    def config(self, *, several: bool = False, **fields: Any) -> Path:
        entry = {"command": sys.executable, "args": [str(self.folder / "server.py"), str(FIXTURES)], **fields}
        servers = {"slow": entry} | ({"echo": stub(tools={"allow": ["echo"]})} if several else {})
        return write_config(self.folder.parent, servers=servers)

    def open(self) -> None:
        (self.folder / "open").touch()

    def close(self) -> None:
        (self.folder / "open").unlink()
        (self.folder / "begun").unlink()

    def offer_more(self) -> None:
        (self.folder / "more").touch()

    @property
    def has_begun(self) -> bool:
        return (self.folder / "begun").exists()


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Slow]:
    server = Slow(tmp_path)
    yield server
    server.open()  # whatever still waits for it ends


async def everything(client: Client) -> list[Any]:
    """What a client is told without a call."""
    return [
        client.server_capabilities.model_dump(exclude_none=True) if client.server_capabilities else None,
        client.instructions,
        sorted(tool.name for tool in (await client.list_tools()).tools),
        [prompt.name for prompt in (await client.list_prompts()).prompts],
        [str(one.uri) for one in (await client.list_resources()).resources],
        [one.uri_template for one in (await client.list_resource_templates()).resource_templates],
    ]


async def learn(config: Path, mode: str) -> list[Any]:
    """Let a hub live in which a client asks for everything."""
    with served(config) as hub:
        async with mcp_client(hub, mode) as client:
            return await everything(client)


@contextmanager
def second_life(slow: Slow, config: Path) -> Iterator[ServedHub]:
    slow.close()
    with served(config) as hub:
        yield hub


@pytest.mark.parametrize("several", [False, True], ids=["one server", "several servers"])
@pytest.mark.parametrize("mode", MODES)
async def test_a_client_is_told_everything_before_a_server_is_up(mode: str, several: bool, slow: Slow) -> None:
    slow.open()
    config = slow.config(several=several)
    told = await learn(config, mode)
    assert "Be slow." in told[1] and "first" in told[2] and told[3:] == [["greet"], ["slow://one"], ["slow://{x}"]]
    with second_life(slow, config) as hub, anyio.fail_after(60):
        async with mcp_client(hub, mode) as client:
            assert await everything(client) == told
            eventually(lambda: slow.has_begun, within=30)  # the start was not left to the first call
            slow.open()
            assert text_of(await client.call_tool("first")) == "nobody"
            assert await everything(client) == told


@pytest.mark.parametrize("several", [False, True], ids=["one server", "several servers"])
async def test_a_client_hears_that_the_tools_are_not_what_it_was_told(several: bool, slow: Slow) -> None:
    changed = anyio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed.set()

    slow.open()
    config = slow.config(several=several)
    await learn(config, "legacy")
    slow.offer_more()
    with second_life(slow, config) as hub, anyio.fail_after(60):
        async with mcp_client(hub, message_handler=on_message) as client:
            assert "second" not in [tool.name for tool in (await client.list_tools()).tools]
            slow.open()
            await changed.wait()
            assert "second" in [tool.name for tool in (await client.list_tools()).tools]


async def test_an_unequal_client_waits_for_the_server(slow: Slow) -> None:
    async def roots(context: Any) -> Any:
        raise AssertionError("not asked for")

    slow.open()
    config = slow.config()
    await learn(config, "legacy")
    with second_life(slow, config) as hub, anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            connected = anyio.Event()

            async def connect() -> None:
                async with mcp_client(hub, list_roots_callback=roots):
                    connected.set()

            tasks.start_soon(connect)
            async with mcp_client(hub):  # is told at once
                eventually(lambda: slow.has_begun, within=30)
                assert not connected.is_set()
            slow.open()
            await connected.wait()


async def test_what_belongs_to_one_task_is_not_told_to_another(slow: Slow) -> None:
    slow.open()
    config = slow.config(env={"WHO": "${task.id}"})
    await learn(config, "legacy")
    assert not list((slow.folder.parent / "state" / "answers").glob("*"))


async def test_what_a_server_lists_after_a_call_is_not_kept(slow: Slow) -> None:
    slow.open()
    with served(slow.config()) as hub:
        async with mcp_client(hub) as client:
            await client.call_tool("first")
            await client.list_prompts()
    (kept,) = (slow.folder.parent / "state" / "answers").iterdir()
    assert [one["name"].split()[0] for one in json.loads(kept.read_text())["entries"]] == ["hello"]


async def test_a_server_that_does_not_start_again_is_told_of_by_the_next_request(slow: Slow) -> None:
    slow.open()
    config = slow.config()
    told = await learn(config, "legacy")
    (slow.folder / "broken").touch()
    with served(config) as hub, anyio.fail_after(60):
        async with mcp_client(hub) as client:
            assert client.instructions == told[1]
            result = await client.call_tool("first")
            assert result.is_error and "did not start" in str(result.content)
            with pytest.raises(MCPError, match="did not start"):
                await client.list_prompts()


@pytest.mark.parametrize("mode", MODES)
async def test_toolhub_stdio_answers_before_its_server_is_up(mode: str, slow: Slow) -> None:
    @asynccontextmanager
    async def over_stdio() -> AsyncIterator[Client]:
        command, *arguments = TOOLHUB
        options = [*arguments, "stdio", "--config", str(config)]
        server = StdioServerParameters(command=command, args=options, cwd=slow.folder.parent, env=environment())
        async with Client(stdio_client(server), mode=mode) as client:
            yield client

    slow.open()
    config = slow.config()
    with anyio.fail_after(60):
        async with over_stdio() as client:
            told = await everything(client)
        slow.close()
        async with over_stdio() as client:
            assert await everything(client) == told
            slow.open()
            assert text_of(await client.call_tool("first")) == "nobody"
