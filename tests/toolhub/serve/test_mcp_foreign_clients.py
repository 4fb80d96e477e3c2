"""Clients that others wrote: each lists, calls, reads a resource, gets a prompt, and answers a question if it can."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_environments import agent_environment
from mcp import Client, StdioServerParameters, stdio_client
from mcp_clients import text_of
from mcp_types import ElicitResult
from real_processes import FIXTURES
from served_hub import TOOLHUB, ServedHub, environment, eventually, served, write_config

from testbed import third_party

pytestmark = pytest.mark.slow

REFERENCE = str(FIXTURES / "reference_server.py")
MCP_REMOTE = "mcp-remote@0.15.1"
INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
INSPECTOR_NODE = "node@22.23.3"
# The tool that asks the user, as each generation of the protocol does.
ASKING = {"legacy": "test_elicitation", "auto": "test_input_required_result_elicitation"}
EVERYTHING = {
    "lists": True,
    "calls": "This is a simple text response for testing.",
    "reads": "This is the content of the static text resource.",
    "prompts": "This is a simple prompt for testing.",
}
ANSWERS = EVERYTHING | {"answers": True}

# Each is run with a mode, the tool that asks, and an address or a command. It prints what it has seen.
SDK_2 = """
import asyncio, json, sys
from mcp import Client, StdioServerParameters, stdio_client
from mcp_types import ElicitResult

async def answer(context, params):
    return ElicitResult(action="accept", content={"username": "ada", "email": "e", "name": "ada"})

async def main(mode, asking, *target):
    is_url = len(target) == 1
    server = target[0] if is_url else stdio_client(StdioServerParameters(command=target[0], args=list(target[1:])))
    async with Client(server, mode=mode, elicitation_callback=answer) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        called = await client.call_tool("test_simple_text", {})
        asked = await client.call_tool(asking, {"message": "who?"} if mode == "legacy" else {})
        resource = await client.read_resource("test://static-text")
        prompt = await client.get_prompt("test_simple_prompt")
        print(json.dumps({
            "lists": "test_simple_text" in tools,
            "calls": called.content[0].text,
            "reads": resource.contents[0].text,
            "prompts": prompt.messages[0].content.text,
            "answers": "ada" in asked.content[0].text,
        }))

asyncio.run(main(*sys.argv[1:]))
"""

SDK_1 = """
import asyncio, json, sys
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client

async def answer(context, params):
    return types.ElicitResult(action="accept", content={"username": "ada", "email": "e"})

async def main(mode, asking, *target):
    is_url = len(target) == 1
    command = StdioServerParameters(command=target[0], args=list(target[1:]))
    async with (streamablehttp_client(target[0]) if is_url else stdio_client(command)) as streams:
        async with ClientSession(*streams[:2], elicitation_callback=answer) as client:
            await client.initialize()
            tools = [tool.name for tool in (await client.list_tools()).tools]
            called = await client.call_tool("test_simple_text", {})
            asked = await client.call_tool(asking, {"message": "who?"})
            resource = await client.read_resource("test://static-text")
            prompt = await client.get_prompt("test_simple_prompt")
            print(json.dumps({
                "lists": "test_simple_text" in tools,
                "calls": called.content[0].text,
                "reads": resource.contents[0].text,
                "prompts": prompt.messages[0].content.text,
                "answers": "ada" in asked.content[0].text,
            }))

asyncio.run(main(*sys.argv[1:]))
"""

FASTMCP = """
import asyncio, json, sys
from fastmcp import Client
from fastmcp.client.transports import StdioTransport

async def answer(message, response_type, params, context):
    return {"username": "ada", "email": "e", "name": "ada"}

async def main(mode, asking, *target):
    server = target[0] if len(target) == 1 else StdioTransport(target[0], list(target[1:]), keep_alive=False)
    options = {"mode": mode} if mode else {}  # the second major knows one generation only
    async with Client(server, elicitation_handler=answer, **options) as client:
        tools = [tool.name for tool in await client.list_tools()]
        called = await client.call_tool("test_simple_text", {})
        asked = await client.call_tool(asking, {"message": "who?"} if mode != "auto" else {})
        resource = await client.read_resource("test://static-text")
        prompt = await client.get_prompt("test_simple_prompt")
        print(json.dumps({
            "lists": "test_simple_text" in tools,
            "calls": called.content[0].text,
            "reads": resource[0].text if isinstance(resource, list) else resource.contents[0].text,
            "prompts": prompt.messages[0].content.text,
            "answers": "ada" in asked.content[0].text,
        }))

asyncio.run(main(*sys.argv[1:]))
"""

LANGCHAIN = """
import asyncio, json, sys
from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp.types import ElicitResult

async def answer(mcp_context, params, context):
    return ElicitResult(action="accept", content={"username": "ada", "email": "e"})

async def main(mode, asking, *target):
    if len(target) == 1:
        headers = {"X-Toolhub-Task": "langchain"}
        server = {"transport": "streamable_http", "url": target[0], "headers": headers}
    else:
        server = {"transport": "stdio", "command": target[0], "args": list(target[1:])}
    client = MultiServerMCPClient({"toolhub": server}, callbacks=Callbacks(on_elicitation=answer))
    tools = {tool.name: tool for tool in await client.get_tools()}
    called = await tools["test_simple_text"].ainvoke({})
    asked = await tools[asking].ainvoke({"message": "who?"})
    if len(target) == 1:
        counts = [await tools["count_calls"].ainvoke({}) for _ in range(2)]
        assert str(counts[0]) != str(counts[1]), counts  # one process for all calls
    resources = await client.get_resources("toolhub", uris=["test://static-text"])
    prompt = await client.get_prompt("toolhub", "test_simple_prompt")
    text = called if isinstance(called, str) else called[0]["text"]
    print(json.dumps({
        "lists": "test_simple_text" in tools,
        "calls": text,
        "reads": resources[0].as_string(),
        "prompts": prompt[0].content,
        "answers": "ada" in str(asked),
    }))

asyncio.run(main(*sys.argv[1:]))
"""

OPENAI_AGENTS = """
import asyncio, json, sys
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp

async def main(mode, asking, *target):
    patience = {"client_session_timeout_seconds": 60}
    if len(target) == 1:
        server = MCPServerStreamableHttp(params={"url": target[0]}, **patience)
    else:
        server = MCPServerStdio(params={"command": target[0], "args": list(target[1:])}, **patience)
    async with server:
        tools = [tool.name for tool in await server.list_tools()]
        called = await server.call_tool("test_simple_text", {})
        prompt = await server.get_prompt("test_simple_prompt")
        resource = await server.read_resource("test://static-text")
        print(json.dumps({
            "lists": "test_simple_text" in tools,
            "calls": called.content[0].text,
            "reads": resource.contents[0].text,
            "prompts": prompt.messages[0].content.text,
        }))

asyncio.run(main(*sys.argv[1:]))
"""

# Calls once, and then waits for its end.
STAYING = """
import asyncio, sys
from {package} import Client

async def main(url):
    async with Client(url, mode="legacy") as client:
        await client.call_tool("test_simple_text", {{}})
        print("called", flush=True)
        await asyncio.sleep(600)

asyncio.run(main(sys.argv[1]))
"""


def python_of(name: str) -> Path:
    return agent_environment(name) / "bin" / "python"


# (environment, script, what it sees). The environment "" is that of the tests, "mcp1" that of the SDK's first major.
PROGRAMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "SDK 2": ("", SDK_2, ANSWERS),
    "SDK 1": ("mcp1", SDK_1, ANSWERS),
    "fastmcp 4": ("fastmcp", FASTMCP, ANSWERS),
    "fastmcp 2": ("mirothinker", FASTMCP, ANSWERS),
    "langchain": ("langgraph", LANGCHAIN, ANSWERS),
    "openai-agents": ("openai-agents", OPENAI_AGENTS, EVERYTHING),
}
# (program, the mode that it is told)
CLIENTS = [
    ("SDK 2", "auto"),
    ("SDK 2", "legacy"),
    ("SDK 1", ""),
    ("fastmcp 4", "auto"),
    ("fastmcp 4", "legacy"),
    ("fastmcp 2", ""),
    ("langchain", ""),
    ("openai-agents", ""),
]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    server = {"command": sys.executable, "args": [REFERENCE]}
    with served(write_config(tmp_path_factory.mktemp("foreign"), servers={"reference": server})) as running:
        yield running


def target(hub: ServedHub, transport: str) -> list[str]:
    """What a client of the hub connects to: an address, or a command."""
    return [f"{hub.http}/mcp"] if transport == "http" else [*TOOLHUB, "stdio", "--hub", hub.http]


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize(("program", "mode"), CLIENTS, ids=[" ".join(filter(None, one)) for one in CLIENTS])
def test_a_client_sees_what_the_server_has(
    program: str, mode: str, transport: str, hub: ServedHub, tmp_path: Path
) -> None:
    where, script, expected = PROGRAMS[program]
    python = {"": Path(sys.executable), "mcp1": third_party.mcp1_python()}.get(where) or python_of(where)
    command = [str(python), "-c", script, mode, ASKING[mode or "legacy"], *target(hub, transport)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == expected


@pytest.mark.parametrize(("package", "where"), [("mcp", ""), ("fastmcp", "fastmcp")])
def test_the_task_of_a_client_that_is_killed_ends_long_before_its_lease(
    package: str, where: str, hub: ServedHub, tmp_path: Path
) -> None:
    python = python_of(where) if where else Path(sys.executable)
    command = [str(python), "-c", STAYING.format(package=package), f"{hub.http}/mcp"]

    def tasks() -> set[str]:
        return {task["id"] for task in http.get("/v1/tasks").json()["tasks"]}

    with hub.client(timeout=60) as http:
        before = tasks()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment()) as client:
            assert client.stdout is not None and client.stdout.readline() == "called\n"
            (own,) = tasks() - before
            client.kill()
        eventually(lambda: own not in tasks(), within=120)  # 20 s after its stream; the lease is 15 minutes


async def answered(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"username": "ada", "email": "e"})


@pytest.mark.anyio
async def test_mcp_remote_between_a_client_over_stdio_and_the_gateway(hub: ServedHub, tmp_path: Path) -> None:
    directory = third_party.versioned("mcp-remote", [MCP_REMOTE])
    prefix = third_party.ensure(directory, lambda home: third_party.npm_install(home, MCP_REMOTE))
    program = prefix / "node_modules" / "mcp-remote" / "dist" / "proxy.js"
    server = StdioServerParameters(
        command=third_party.node(), args=[str(program), f"{hub.http}/mcp", "--allow-http"], cwd=tmp_path
    )
    with (tmp_path / "stderr.txt").open("w") as errors:
        transport = stdio_client(server, errlog=errors)
        async with Client(transport, mode="legacy", elicitation_callback=answered) as client:
            assert "test_simple_text" in [tool.name for tool in (await client.list_tools()).tools]
            assert text_of(await client.call_tool("test_simple_text")) == EVERYTHING["calls"]
            assert "ada" in text_of(await client.call_tool("test_elicitation", {"message": "who?"}))
            assert (await client.read_resource("test://static-text")).contents
            assert (await client.get_prompt("test_simple_prompt")).messages


@pytest.fixture(scope="module")
def inspector() -> list[str]:
    """The command line of the inspector, installed once into the test cache."""
    pins = [INSPECTOR_NODE, INSPECTOR]
    prefix = third_party.ensure(
        third_party.versioned("inspector", pins), lambda home: third_party.npm_install(home, *pins)
    )
    node = prefix / "node_modules" / ".bin" / "node"
    return [str(node), str(prefix / "node_modules" / ".bin" / "mcp-inspector"), "--cli"]


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_sees_what_the_server_has(
    era: str, transport: str, inspector: list[str], hub: ServedHub, tmp_path: Path
) -> None:
    where = target(hub, transport)
    connect = ["--server-url", *where, "--transport", "http"] if transport == "http" else where

    def inspect(method: str, *options: str) -> Any:
        command = [*inspector, *connect, "--protocol-era", era, "--format", "json", "--quiet", "--method", method]
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment()
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["result"]

    called = inspect("tools/call", "--tool-name", "test_simple_text")
    read = inspect("resources/read", "--uri", "test://static-text")
    prompt = inspect("prompts/get", "--prompt-name", "test_simple_prompt")
    seen = {
        "lists": "test_simple_text" in [tool["name"] for tool in inspect("tools/list")["tools"]],
        "calls": called["content"][0]["text"],
        "reads": read["contents"][0]["text"],
        "prompts": prompt["messages"][0]["content"]["text"],
    }
    assert seen == EVERYTHING
