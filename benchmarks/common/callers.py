"""The variants of one tool call, toolhub's and the baselines'. Each `open_` function yields a connected `ToolCaller`.

Imports are inside these functions: a variant runs in a process of its own, perhaps under an interpreter that has only
its own package. It should not pay for the packages of the others.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

Json = dict[str, Any]

PROTOCOL = "2025-06-18"
_TASK = {"X-Toolhub-Task": "bench"}
_CLIENT = {"name": "bench", "version": "1"}


@dataclass(frozen=True)
class ToolCaller:
    """`call` makes one call and checks the answer; `hub_pid` is the process in between, if there is one.

    hub_lags_ms: how late the loop of that process woke, since it was last asked; see `loop_lag`.
    """

    call: Callable[[], Awaitable[None]]
    hub_pid: int | None = None
    hub_lags_ms: Callable[[], Awaitable[list[float]]] | None = None


def check(is_error: bool, text: str = "", expected: str = "") -> None:
    if is_error:
        raise RuntimeError("the tool reported an error; a failed call must not count as a fast one")
    if expected not in text:
        raise RuntimeError(f"the answer has no {expected!r}: {text[:200]!r}; a wrong one must not count")


def asking(server: Json) -> Callable[[], tuple[Json, str]]:
    """Return a function that gives each call its arguments and the text that only this call's answer has."""
    numbers, arguments, numbered = itertools.count(), server["arguments"], server.get("numbered")

    def ask() -> tuple[Json, str]:
        if not numbered:
            return arguments, server.get("expected", "")
        word = f"{arguments[numbered]} <{next(numbers)}>"
        return {**arguments, numbered: word}, word

    return ask


def hub_entry(server: Json) -> Json:
    """The server in a hub's config: a builtin has no command, and neither has a server over HTTP."""
    if server.get("url"):
        return {"url": server["url"]}
    if server.get("builtin"):
        return {"builtin": server["builtin"]}
    return {"command": server["argv"][0], "args": server["argv"][1:]}


@asynccontextmanager
async def open_floor(server: Json) -> AsyncIterator[ToolCaller]:
    """Write and read JSON lines on the child's pipes by hand. No client of the protocol can be cheaper."""
    child = await asyncio.create_subprocess_exec(*server["argv"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    stdin, stdout = child.stdin, child.stdout
    assert stdin is not None and stdout is not None
    waiting: dict[int, asyncio.Future[Json]] = {}
    numbers = itertools.count(1)

    def send(message: Json) -> None:
        stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def read() -> None:
        async for line in stdout:
            message = json.loads(line)
            if "method" not in message:
                waiting.pop(message["id"]).set_result(message)

    async def request(method: str, params: Json) -> Json:
        number = next(numbers)
        future = waiting[number] = asyncio.get_running_loop().create_future()
        send({"id": number, "method": method, "params": params})
        answer: Json = await future
        return answer

    ask = asking(server)

    async def call() -> None:
        arguments, expected = ask()
        answer = await request("tools/call", {"name": server["tool"], "arguments": arguments})
        check("error" in answer or bool(answer["result"].get("isError")))
        check(False, answer["result"]["content"][0]["text"], expected)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await request("initialize", {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": _CLIENT})
        send({"method": "notifications/initialized"})
        yield ToolCaller(call)
        stdin.close()
        await child.wait()


@asynccontextmanager
async def sdk_session(server: Json) -> AsyncIterator[Any]:
    """Start a server with the official SDK and shake hands, nothing more."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    parameters = StdioServerParameters(command=server["argv"][0], args=server["argv"][1:], env=server.get("env"))
    async with stdio_client(parameters) as (reader, writer), ClientSession(reader, writer) as session:
        await session.initialize()
        yield session


@asynccontextmanager
async def open_sdk(server: Json) -> AsyncIterator[ToolCaller]:
    """The official SDK, one session for all calls."""
    async with sdk_session(server) as session:
        await session.list_tools()  # otherwise the SDK lists them at the first call
        yield ToolCaller(_calls(session.call_tool, server))


@asynccontextmanager
async def open_spawn(server: Json) -> AsyncIterator[ToolCaller]:
    """A process and a handshake for every call, as MiroFlow's ToolManager does."""

    async def call_tool(name: str, arguments: Json) -> Any:
        async with sdk_session(server) as session:
            return await session.call_tool(name, arguments)

    yield ToolCaller(_calls(call_tool, server))


def _calls(call_tool: Callable[[str, Json], Awaitable[Any]], server: Json) -> Callable[[], Awaitable[None]]:
    """Calls by a function whose results look like the SDK's."""
    ask = asking(server)

    async def call() -> None:
        arguments, expected = ask()
        result = await call_tool(server["tool"], arguments)
        check(result.is_error, result.content[0].text, expected)

    return call


@asynccontextmanager
async def open_embedded(server: Json) -> AsyncIterator[ToolCaller]:
    """toolhub in this process."""
    from benchmarks.common.result import hub_config
    from toolhub import Hub

    with tempfile.TemporaryDirectory() as state:
        async with Hub(hub_config({"echo": hub_entry(server)}, Path(state))) as hub, hub.task("bench") as task:
            yield ToolCaller(_task_calls(task, server))


def _task_calls(task: Any, server: Json) -> Callable[[], Awaitable[None]]:
    ask = asking(server)

    async def call() -> None:
        arguments, expected = ask()
        result = await task.call("echo", server["tool"], arguments)
        check(result.is_error, result.text, expected)

    return call


def _lags(task: Any) -> Callable[[], Awaitable[list[float]]]:
    async def lags_ms() -> list[float]:
        found: list[float] = json.loads((await task.call("ticks", "take", {})).text)
        return found

    return lags_ms


@asynccontextmanager
async def open_socket(server: Json) -> AsyncIterator[ToolCaller]:
    """toolhub in a process of its own, reached through its unix socket."""
    import toolhub
    from benchmarks.common.hub_process import ServedHub

    entries = {"echo": hub_entry(server), "ticks": {"builtin": "benchmarks.common.loop_lag:create_server"}}
    with ServedHub(entries) as hub:
        async with toolhub.connect(hub.address) as remote, remote.task("bench") as task:
            yield ToolCaller(_task_calls(task, server), hub.pid, _lags(task))


@asynccontextmanager
async def open_http(server: Json) -> AsyncIterator[ToolCaller]:
    """toolhub in a process of its own, reached as any MCP client reaches it: the SDK over HTTP."""
    from benchmarks.common.hub_process import HttpHub

    with HttpHub({"echo": hub_entry(server)}) as hub:
        async with http_client(hub.address, server) as client:
            yield ToolCaller(_calls(client.call_tool, server), hub.pid)


@asynccontextmanager
async def open_direct(server: Json) -> AsyncIterator[ToolCaller]:
    """The SDK over HTTP at the server itself, which runs already."""
    async with http_client(server["url"], server) as client:
        yield ToolCaller(_calls(client.call_tool, server))


@asynccontextmanager
async def open_fastmcp_proxy(server: Json) -> AsyncIterator[ToolCaller]:
    """fastmcp's proxy in a process of its own, asked in the same way."""
    from benchmarks.common.subprocess_worker import Worker

    # On uvloop, as uvicorn's command line runs it where that is installed.
    with Worker("benchmarks.common.hub_process:open_fastmcp_proxy", {"entry": hub_entry(server)}, uvloop=True) as proxy:
        async with http_client(proxy.ask({})["address"], server) as client:
            yield ToolCaller(_calls(client.call_tool, server), proxy.pid)


@asynccontextmanager
async def http_client(url: str, server: Json) -> AsyncIterator[Any]:
    """The SDK's client of an MCP server over HTTP, which speaks the revision that `server` names."""
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    # Clients of revision 2026-07-28 have no session by which a hub could know their task.
    headers = _TASK if server.get("mode", "legacy") != "legacy" else {}
    # The client's stream for notifications is silent.
    async with httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30, read=300)) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=server.get("mode", "legacy")) as client:
            await client.list_tools()  # see open_sdk
            yield client


@asynccontextmanager
async def open_fastmcp(server: Json) -> AsyncIterator[ToolCaller]:
    """fastmcp's client, one context for all calls over its keep-alive transport."""
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport

    transport = StdioTransport(command=server["argv"][0], args=server["argv"][1:], keep_alive=True)
    client = Client(transport)
    try:
        async with client:
            yield ToolCaller(_calls(client.call_tool, server))
    finally:
        await client.close()


@asynccontextmanager
async def open_langchain(server: Json) -> AsyncIterator[ToolCaller]:
    """langchain-mcp-adapters as its README begins: tools of `get_tools()` open a session for every call."""
    yield ToolCaller(_langchain_calls(await _langchain_client(server).get_tools(), server))


@asynccontextmanager
async def open_langchain_session(server: Json) -> AsyncIterator[ToolCaller]:
    """langchain-mcp-adapters with the session that its README lets one open explicitly."""
    from langchain_mcp_adapters.tools import load_mcp_tools

    async with _langchain_client(server).session("echo") as session:
        yield ToolCaller(_langchain_calls(await load_mcp_tools(session), server))


def _langchain_client(server: Json) -> Any:
    from langchain_mcp_adapters.client import MultiServerMCPClient

    return MultiServerMCPClient({"echo": {"transport": "stdio", **hub_entry(server)}})


def _langchain_calls(tools: list[Any], server: Json) -> Callable[[], Awaitable[None]]:
    """Calls as LangChain's agents make them: an error of the tool is a message, too."""
    tool = next(tool for tool in tools if tool.name == server["tool"])
    ask = asking(server)

    async def call() -> None:
        arguments, expected = ask()
        message = await tool.ainvoke({"type": "tool_call", "id": "bench", "name": tool.name, "args": arguments})
        check(message.status == "error", message.text, expected)

    return call
