"""Clients that others wrote: each lists, calls, reads a resource, gets a prompt, and answers a question if it can."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_environments import agent_environment
from mcp import Client, StdioServerParameters, stdio_client
from mcp_clients import text_of
from real_processes import FIXTURES
from served_hub import TOOLHUB, ServedHub, environment, served, write_config

from testbed import third_party

pytestmark = pytest.mark.slow

REFERENCE = str(FIXTURES / "reference_server.py")
MCP_REMOTE = "mcp-remote@0.1.38"
EVERYTHING = {
    "lists": True,
    "calls": "This is a simple text response for testing.",
    "reads": "This is the content of the static text resource.",
    "prompts": "This is a simple prompt for testing.",
}
ANSWERS = EVERYTHING | {"answers": "ada"}

SDK_1 = """
import asyncio, json, sys
from mcp import ClientSession, types
from mcp.client.streamable_http import streamablehttp_client

async def answer(context, params):
    return types.ElicitResult(action="accept", content={"username": "ada", "email": "e"})

async def main(url):
    async with streamablehttp_client(url) as (read, write, _):
        async with ClientSession(read, write, elicitation_callback=answer) as client:
            await client.initialize()
            tools = [tool.name for tool in (await client.list_tools()).tools]
            called = await client.call_tool("test_simple_text", {})
            asked = await client.call_tool("test_elicitation", {"message": "who?"})
            resource = await client.read_resource("test://static-text")
            prompt = await client.get_prompt("test_simple_prompt")
            print(json.dumps({
                "lists": "test_simple_text" in tools,
                "calls": called.content[0].text,
                "reads": resource.contents[0].text,
                "prompts": prompt.messages[0].content.text,
                "answers": "ada" if "ada" in asked.content[0].text else asked.content[0].text,
            }))

asyncio.run(main(sys.argv[1]))
"""

FASTMCP = """
import asyncio, json, sys
from fastmcp import Client

async def answer(message, response_type, params, context):
    return {"username": "ada", "email": "e"}

async def main(url):
    async with Client(url, elicitation_handler=answer) as client:
        tools = [tool.name for tool in await client.list_tools()]
        called = await client.call_tool("test_simple_text", {})
        asked = await client.call_tool("test_elicitation", {"message": "who?"})
        resource = await client.read_resource("test://static-text")
        prompt = await client.get_prompt("test_simple_prompt")
        print(json.dumps({
            "lists": "test_simple_text" in tools,
            "calls": called.content[0].text,
            "reads": resource[0].text,
            "prompts": prompt.messages[0].content.text,
            "answers": "ada" if "ada" in asked.content[0].text else asked.content[0].text,
        }))

asyncio.run(main(sys.argv[1]))
"""

LANGCHAIN = """
import asyncio, json, sys
from langchain_mcp_adapters.client import MultiServerMCPClient

async def main(url):
    headers = {"X-Toolhub-Task": "langchain"}
    client = MultiServerMCPClient({"toolhub": {"transport": "streamable_http", "url": url, "headers": headers}})
    tools = {tool.name: tool for tool in await client.get_tools()}
    called = await tools["test_simple_text"].ainvoke({})
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
    }))

asyncio.run(main(sys.argv[1]))
"""

OPENAI_AGENTS = """
import asyncio, json, sys
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp

async def main(url, *command):
    patience = {"client_session_timeout_seconds": 60}
    if command:
        server = MCPServerStdio(params={"command": command[0], "args": list(command[1:])}, **patience)
    else:
        server = MCPServerStreamableHttp(params={"url": url}, **patience)
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


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    server = {"command": sys.executable, "args": [REFERENCE]}
    with served(write_config(tmp_path_factory.mktemp("foreign"), servers={"reference": server})) as running:
        yield running


def said_by(python: Path, script: str, *arguments: str, folder: Path) -> dict[str, object]:
    """Run a client; return what it says that it saw."""
    command = [str(python), "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder, env=environment())
    assert done.returncode == 0, done.stderr
    said: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return said


def python_of(name: str) -> Path:
    return agent_environment(name) / "bin" / "python"


def test_the_first_major_of_the_sdk(hub: ServedHub, tmp_path: Path) -> None:
    assert said_by(third_party.mcp1_python(), SDK_1, f"{hub.http}/mcp", folder=tmp_path) == ANSWERS


def test_fastmcp_of_an_older_agent(hub: ServedHub, tmp_path: Path) -> None:
    assert said_by(python_of("mirothinker"), FASTMCP, f"{hub.http}/mcp", folder=tmp_path) == ANSWERS


def test_langchain_keeps_one_process_when_it_names_a_task(hub: ServedHub, tmp_path: Path) -> None:
    assert said_by(python_of("langgraph"), LANGCHAIN, f"{hub.http}/mcp", folder=tmp_path) == EVERYTHING


def test_openai_agents_over_http(hub: ServedHub, tmp_path: Path) -> None:
    assert said_by(python_of("openai-agents"), OPENAI_AGENTS, f"{hub.http}/mcp", folder=tmp_path) == EVERYTHING


def test_openai_agents_over_stdio(hub: ServedHub, tmp_path: Path) -> None:
    command = [*TOOLHUB, "stdio", "--hub", hub.http]
    assert said_by(python_of("openai-agents"), OPENAI_AGENTS, "", *command, folder=tmp_path) == EVERYTHING


@pytest.mark.anyio
async def test_mcp_remote_between_a_client_over_stdio_and_the_gateway(hub: ServedHub, tmp_path: Path) -> None:
    directory = third_party.versioned("mcp-remote", [MCP_REMOTE])
    prefix = third_party.ensure(directory, lambda home: third_party.npm_install(home, MCP_REMOTE))
    program = prefix / "node_modules" / "mcp-remote" / "dist" / "proxy.js"
    server = StdioServerParameters(
        command=third_party.node(), args=[str(program), f"{hub.http}/mcp", "--allow-http"], cwd=tmp_path
    )
    with (tmp_path / "stderr.txt").open("w") as errors:
        async with Client(stdio_client(server, errlog=errors), mode="legacy") as client:
            assert "test_simple_text" in [tool.name for tool in (await client.list_tools()).tools]
            assert text_of(await client.call_tool("test_simple_text")) == EVERYTHING["calls"]
            assert (await client.read_resource("test://static-text")).contents
            assert (await client.get_prompt("test_simple_prompt")).messages
