"""How long an MCP session and its task live, in virtual time, through the HTTP interface of `McpEndpoint`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from in_memory_hub import Pausing, a_hub, echo, virtual_time
from running import Running

from toolhub import Hub
from toolhub.channel.memory import MemoryServer, ToolFn, text_result
from toolhub.model import Json
from toolhub.serve.mcp.http import GONE_AFTER_S, McpEndpoint

pytestmark = pytest.mark.anyio

# The second is shorter than a call may take.
LEASE_S, LONG_S = 4, 250
HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
HELLO = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time()


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def result(self) -> Json:
        """The JSON-RPC result, from a plain answer or from a stream of events."""
        lines = [line.removeprefix("data: ") for line in self.body.decode().splitlines()]
        result: Json = next(json.loads(line) for line in lines if line.startswith('{"'))["result"]
        return result


class Client:
    """One MCP client, spoken by hand: nothing is sent that a test does not send."""

    def __init__(self, endpoint: McpEndpoint, *, task: str = "") -> None:
        self.headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        self.task = task
        self._endpoint = endpoint

    async def send(self, http_method: str, message: Json | None = None, **headers: str) -> Answer:
        answer = Answer()
        body = [json.dumps({"jsonrpc": "2.0", **message}).encode() if message else b""]

        async def receive() -> Json:
            if not body:
                await anyio.sleep_forever()
            return {"type": "http.request", "body": body.pop(), "more_body": False}

        async def send(part: Mapping[str, Any]) -> None:
            if part["type"] == "http.response.start":
                answer.status = part["status"]
                answer.headers = {name.decode(): value.decode() for name, value in part["headers"]}
            answer.body += part.get("body", b"")

        named = {"x-toolhub-task": self.task} if self.task else {}
        given = (self.headers | named | {name.replace("_", "-"): value for name, value in headers.items()}).items()
        raw = [(name.encode(), value.encode()) for name, value in given]
        scope = {"type": "http", "method": http_method, "path": "/mcp", "query_string": b"", "headers": raw}
        await self._endpoint(scope, receive, send)
        return answer

    async def open(self) -> None:
        answer = await self.send("POST", {"id": 1, "method": "initialize", "params": HELLO})
        self.headers |= {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": HANDSHAKE}
        assert (await self.send("POST", {"method": "notifications/initialized"})).status == 202

    async def ping(self) -> int:
        return (await self.send("POST", {"id": 2, "method": "ping"})).status

    async def call(self, tool: str = "count") -> Answer:
        return await self.send("POST", {"id": 3, "method": "tools/call", "params": {"name": tool, "arguments": {}}})

    async def count(self) -> str:
        answer = await self.call()
        assert answer.status == 200, answer
        return str(answer.result["content"][0]["text"])


class Counting:
    """A server whose every process counts its own calls: a fresh one begins with 1. Calls go to the latest one."""

    def __init__(self) -> None:
        self.server = MemoryServer(count=self._count, echo=echo)

    async def _count(self, arguments: Mapping[str, Any]) -> Json:
        return text_result(str(len(self.server.live[-1].calls)))


@asynccontextmanager
async def an_endpoint(*, lease: float = LEASE_S, **tools: ToolFn) -> AsyncIterator[tuple[Hub, McpEndpoint]]:
    server = Counting().server
    server.tools |= tools
    async with a_hub(server) as hub:
        endpoint = McpEndpoint(hub, lease=lease)
        async with endpoint.running():
            yield hub, endpoint


@asynccontextmanager
async def a_client(endpoint: McpEndpoint, **options: str) -> AsyncIterator[Client]:
    client = Client(endpoint, **options)
    await client.open()
    yield client


async def test_a_ping_each_second_keeps_the_task() -> None:
    async with an_endpoint() as (hub, endpoint), a_client(endpoint) as client:
        assert await client.count() == "1"
        for _ in range(60):
            await anyio.sleep(1)
            assert await client.ping() == 200
        assert await client.count() == "2"


async def test_an_open_stream_keeps_the_task_even_one_opened_before_the_first_call() -> None:
    async with an_endpoint() as (hub, endpoint), a_client(endpoint) as client, anyio.create_task_group() as group:
        stream = Running(group, client.send, "GET")
        await anyio.sleep(100)
        assert await client.count() == "1"
        await anyio.sleep(100)
        assert await client.count() == "2" and not stream.is_done
        stream.cancel()


async def test_the_lease_runs_from_the_end_of_the_stream() -> None:
    async with an_endpoint() as (hub, endpoint), a_client(endpoint) as client, anyio.create_task_group() as group:
        await client.count()
        stream = Running(group, client.send, "GET")
        await anyio.sleep(100)
        stream.cancel()
        await anyio.sleep(LEASE_S - 1)
        assert len(hub.tasks) == 1
        await anyio.sleep(3)
        assert hub.tasks == []
        assert (await client.call()).status == 404


async def test_a_client_that_closed_its_stream_and_waits_for_nothing_is_gone_long_before_its_lease_ends() -> None:
    async with an_endpoint(lease=LONG_S) as (hub, endpoint), a_client(endpoint) as client:
        async with a_client(endpoint) as without_stream, anyio.create_task_group() as group:
            await client.count()
            await without_stream.count()
            stream = Running(group, client.send, "GET")
            await anyio.sleep(LONG_S / 2)
            assert len(hub.tasks) == 2
            stream.cancel()
            await anyio.sleep(GONE_AFTER_S - 1)
            assert len(hub.tasks) == 2
            await anyio.sleep(2)
            assert len(hub.tasks) == 1
            assert (await client.call()).status == 404
            assert await without_stream.count() == "2"


async def test_a_call_in_flight_keeps_the_session_of_a_client_that_closed_its_stream() -> None:
    pausing = Pausing()
    async with an_endpoint(lease=LONG_S, pause=pausing) as (hub, endpoint), a_client(endpoint) as client:
        async with anyio.create_task_group() as group:
            stream = Running(group, client.send, "GET")
            call = Running(group, client.call, "pause")
            await anyio.sleep(1)
            stream.cancel()
            await anyio.sleep(2 * GONE_AFTER_S)
            assert pausing.inside == 1
            pausing.go.set()
            assert (await call.wait()).result["content"][0]["text"] == "done"
            await anyio.sleep(GONE_AFTER_S + 1)
            assert hub.tasks == []


async def test_a_task_that_expired_ends_its_session_and_a_new_session_begins_afresh() -> None:
    async with an_endpoint() as (hub, endpoint), a_client(endpoint) as client:
        assert await client.count() == "1"
        await anyio.sleep(LEASE_S + 2)
        assert hub.tasks == []
        for _ in range(2):
            assert (await client.call()).status == 404
            assert await client.ping() == 404
        assert hub.tasks == []
        async with a_client(endpoint) as again:
            assert await again.count() == "1"


async def test_a_session_that_never_called_ends_as_well() -> None:
    async with an_endpoint() as (hub, endpoint), a_client(endpoint) as client:
        await anyio.sleep(LEASE_S + 2)
        assert await client.ping() == 404
        assert (hub.tasks, endpoint.sessions) == ([], {})


async def test_a_session_whose_task_was_closed_by_somebody_else_is_told_with_404() -> None:
    async with an_endpoint() as (hub, endpoint), a_client(endpoint) as client:
        assert await client.count() == "1"
        await hub.close_task(hub.tasks[0].id)
        assert (await client.call()).status == 404
        assert hub.tasks == []


async def test_requests_and_streams_hold_the_lease_of_the_task_that_they_name() -> None:
    async with an_endpoint() as (hub, endpoint):
        task = await hub.open_task("named", lease=LEASE_S)
        async with a_client(endpoint, task="named") as client, anyio.create_task_group() as group:
            for _ in range(10):
                await anyio.sleep(3)
                assert await client.ping() == 200
            stream = Running(group, client.send, "GET")
            await anyio.sleep(100)
            assert hub.tasks == [task]
            stream.cancel()


async def test_a_session_does_not_go_on_in_another_task_of_the_same_name() -> None:
    async with an_endpoint() as (hub, endpoint):
        await hub.open_task("named", lease=LEASE_S)
        async with a_client(endpoint, task="named") as client, a_client(endpoint, task="named") as other:
            assert [await client.count(), await other.count()] == ["1", "2"]
            await hub.close_task("named")
            fresh = await hub.open_task("named")
            for each in (client, other):
                assert (await each.call()).status == 404
            assert (await fresh.call("memory", "count")).text == "1"


async def test_a_session_that_is_ended_by_its_client_ends_its_own_task_and_no_other() -> None:
    async with an_endpoint() as (hub, endpoint):
        await hub.open_task("named")
        async with a_client(endpoint) as own, a_client(endpoint, task="named") as naming:
            await own.count()
            await naming.count()
            assert len(hub.tasks) == 2
            for client in (own, naming):
                assert (await client.send("DELETE")).status == 200
                assert await client.ping() == 404
            await anyio.wait_all_tasks_blocked()
            assert ([task.id for task in hub.tasks], endpoint.sessions) == (["named"], {})


def modern_call(**more: Any) -> dict[str, Any]:
    """The message and the headers of one tool call of revision 2026-07-28."""
    params = {"name": "count", "arguments": {}, "_meta": ENVELOPE} | more
    headers = {"mcp_protocol_version": MODERN, "mcp_method": "tools/call", "mcp_name": "count"}
    return {"http_method": "POST", "message": {"id": 1, "method": "tools/call", "params": params}} | headers


async def test_a_request_of_the_modern_era_holds_the_lease_of_the_task_that_it_names() -> None:
    async with an_endpoint() as (hub, endpoint):
        client = Client(endpoint, task="named")
        for number in range(1, 20):
            assert (await client.send(**modern_call())).result["content"][0]["text"] == str(number)
            await anyio.sleep(LEASE_S - 1)


async def test_modern_clients_without_a_task_never_meet_in_one_process_and_come_back_with_a_handle() -> None:
    async with an_endpoint() as (hub, endpoint):
        one, other = Client(endpoint), Client(endpoint)
        first = (await one.send(**modern_call())).result
        handle = first["_meta"]["toolhub/task"]
        ways: list[dict[str, Any]] = [
            {"_meta": {**ENVELOPE, "toolhub/task": handle}},
            {"arguments": {"toolhub_task": handle}},
            {"requestState": f"toolhub:{handle}"},
        ]
        for number, way in enumerate(ways, 2):
            again = (await one.send(**modern_call(**way))).result
            assert again["content"][0]["text"] == str(number) and "toolhub/task" not in again.get("_meta", {})
        strange = (await other.send(**modern_call())).result
        assert strange["content"][0]["text"] == "1" and strange["_meta"]["toolhub/task"] != handle


async def test_an_invented_handle_opens_nothing() -> None:
    async with an_endpoint() as (hub, endpoint):
        refused = await Client(endpoint).send(**modern_call(_meta={**ENVELOPE, "toolhub/task": "invented"}))
        assert refused.status == 400 and b"no open task 'invented'" in refused.body
        assert hub.tasks == []


async def test_a_task_whose_handle_is_not_used_ends_with_its_lease() -> None:
    async with an_endpoint() as (hub, endpoint):
        handle = (await Client(endpoint).send(**modern_call())).result["_meta"]["toolhub/task"]
        await anyio.sleep(LEASE_S + 2)
        assert handle not in [task.id for task in hub.tasks]


async def test_too_many_tasks_are_refused_with_429() -> None:
    async with a_hub(Counting().server, limits={"max_tasks": 1}) as hub, hub.task("other"):
        endpoint = McpEndpoint(hub, lease=LEASE_S)
        async with endpoint.running():
            client = Client(endpoint)
            refused = await client.send("POST", {"id": 1, "method": "initialize", "params": HELLO})
            assert refused.status == 429 and b"max_tasks" in refused.body
            assert endpoint.sessions == {}
