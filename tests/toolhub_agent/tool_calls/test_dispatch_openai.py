"""A foreign agent: the `openai` SDK's own stream from a loopback server, in the ten lines the package promises."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import pytest
from openai import AsyncOpenAI
from toolhub_agent.tool_calls import Dispatcher
from toolhub_agent.types import Json

from tests.toolhub_agent.tool_calls.staged_tools import CATALOG, Events, StagedTools, native, search

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the SDK speaks no other


def chunk(**delta: object) -> Json:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
    }


@asynccontextmanager
async def sse_server(pieces: Callable[[], AsyncIterator[Json]]) -> AsyncIterator[tuple[AsyncOpenAI, list[Json]]]:
    """A chat completions endpoint that streams `pieces()`; gives a client for it, and the requests it got."""
    requests: list[Json] = []

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            requests.append(await read_request(stream))
            await stream.send(HEAD)
            async for piece in pieces():
                await stream.send(f"data: {json.dumps(piece)}\n\n".encode())
            await stream.send(b"data: [DONE]\n\n")

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
            yield client, requests
        tasks.cancel_scope.cancel()


async def read_request(stream: anyio.abc.SocketStream) -> Json:
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive()
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        body += await stream.receive()
    return json.loads(body)


async def test_a_foreign_agent_starts_native_calls_while_the_stream_is_still_open():
    execute, events = StagedTools(), Events()
    messages: list[Any] = [{"role": "user", "content": "cats and dogs?"}]

    async def pieces() -> AsyncIterator[Json]:
        yield chunk(role="assistant", content="")
        for index in (0, 1):
            whole = native(index, index=index)
            yield chunk(tool_calls=[whole | {"type": "function", "function": {"name": "web-search", "arguments": ""}}])
            for character in whole["function"]["arguments"]:
                yield chunk(tool_calls=[{"index": index, "function": {"arguments": character}}])
            # The stream goes on only because the call already runs.
            await execute.wait_begun(index)
        execute.release(1, 0)
        yield {**chunk(), "choices": []}  # usage comes without a choice

    with anyio.fail_after(30):
        async with sse_server(pieces) as (client, requests):
            asked: dict[str, Any] = {"model": "m", "messages": messages, "tools": CATALOG.native_tools()}
            async with Dispatcher(execute, CATALOG, protocol="native", on_event=events) as turn:
                async for piece in await client.chat.completions.create(**asked, stream=True):
                    turn.feed(piece)
                called = await turn.finish()
                messages.append({"role": "assistant", "tool_calls": list(called.native)})
                async for outcome in turn.results():
                    messages.append(  # noqa: PERF401 - the promised ten lines, as they stand in the package
                        {"role": "tool", "tool_call_id": outcome.call.id, "content": outcome.text}
                    )

    assert events.told[:2] == [("early", 0), ("early", 1)]
    assert requests[0]["tools"] == CATALOG.native_tools()
    assert messages[1:] == [
        {
            "role": "assistant",
            "tool_calls": [
                {"id": f"c{n}", "type": "function", "function": {"name": "web-search", "arguments": f'{{"n": {n}}}'}}
                for n in (0, 1)
            ],
        },
        {"role": "tool", "tool_call_id": "c0", "content": "result 0"},
        {"role": "tool", "tool_call_id": "c1", "content": "result 1"},
    ]


async def test_a_foreign_agent_starts_calls_in_xml_while_the_text_is_still_written():
    execute = StagedTools()

    async def pieces() -> AsyncIterator[Json]:
        for character in search(1):
            yield chunk(content=character)
        await execute.wait_begun(1)
        execute.release(1)
        yield chunk(content="That is all.")

    with anyio.fail_after(30):
        async with sse_server(pieces) as (client, _), Dispatcher(execute, CATALOG) as turn:
            async for piece in await client.chat.completions.create(model="m", messages=[], stream=True):
                turn.feed(piece.choices[0].delta)  # a chunk's delta is taken as well
            await turn.finish()
            assert [(outcome.text, outcome.started_early) async for outcome in turn.results()] == [("result 1", True)]


def test_the_component_loads_no_llm_client():
    script = (
        "import sys, toolhub_agent.tool_calls; print(sorted({'openai', 'json_repair', 'httpx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
