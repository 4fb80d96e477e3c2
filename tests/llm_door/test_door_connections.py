"""The proxy's own connections to an engine: kept, given up, bounded, and what they send at once."""

from __future__ import annotations

import json
from contextlib import suppress

import anyio
import httpcore2
import pytest
from door_stage import chat, open_stage
from llm_stand_in.answers import cut, stalled
from toolhub_agent.llm.endpoint_pool import open_endpoint_pool
from toolhub_agent.proxy.connections import CoalescingBackend, CoalescingStream, ConnectionPool

from toolhub.config.llm import LlmSettings

pytestmark = pytest.mark.anyio


def request_to(server, **more):
    body = json.dumps(chat(**more)).encode()
    headers = [(b"host", b"engine"), (b"content-length", str(len(body)).encode())]
    return httpcore2.Request(b"POST", f"{server.url}/chat/completions", headers=headers, content=body)


def connections_to(server, *, most=8, most_idle=8, keepalive=60.0):
    made = []
    maker = httpcore2.AsyncConnectionPool(keepalive_expiry=keepalive, network_backend=CoalescingBackend())

    def connect():
        made.append(maker.create_connection(httpcore2.URL(server.url).origin))
        return made[-1]

    return ConnectionPool(connect, most=most, most_idle=most_idle), made


async def whole(connections, server):
    async with connections.send(request_to(server)) as response:
        return await response.aread()


async def test_a_connection_serves_one_request_after_the_other(server):
    connections, made = connections_to(server)
    for _ in range(3):
        assert b"ok" in await whole(connections, server)
    assert len(made) == 1 and made[0].is_idle()
    await connections.aclose()
    assert made[0].is_closed()


async def test_a_connection_whose_time_is_over_is_closed_and_not_used_again(server):
    connections, made = connections_to(server, keepalive=-1.0)
    for _ in range(2):
        await whole(connections, server)
    assert len(made) == 2 and all(each.is_closed() for each in made)


async def test_no_more_are_kept_than_may_be_and_the_oldest_goes(server):
    connections, made = connections_to(server, most_idle=1)
    async with connections.send(request_to(server)) as outer:
        await whole(connections, server)
        assert made[1].is_idle()
        await outer.aread()
    assert made[1].is_closed() and made[0].is_idle()
    await connections.aclose()


@pytest.mark.parametrize("answer", [stalled("one ", "two "), cut("one ", "two ")], ids=["left", "broken"])
async def test_a_connection_in_the_middle_of_an_answer_is_never_kept(server, answer):
    server.script(answer)
    connections, made = connections_to(server)
    with anyio.fail_after(10), anyio.CancelScope() as leaving, suppress(httpcore2.RemoteProtocolError):
        async with connections.send(request_to(server, stream=True)) as response:
            async for piece in response.aiter_stream():
                if answer.hold and b"one" in piece:
                    leaving.cancel()
    assert leaving.cancelled_caught is answer.hold
    assert made[0].is_closed() and repr(connections) == "<ConnectionPool 0 idle>"
    await server.wait_until(lambda s: s.running == 0)


async def test_more_than_may_be_at_once_wait_for_their_turn(server):
    connections, made = connections_to(server, most=1)
    async with anyio.create_task_group() as tasks:
        async with connections.send(request_to(server)) as first:
            tasks.start_soon(whole, connections, server)
            await anyio.wait_all_tasks_blocked()
            assert len(made) == len(server.chats) == 1
            await first.aread()
    assert len(made) == 1 and len(server.chats) == 2
    await connections.aclose()


async def test_no_connection_stays_open_when_the_door_closes(server, tmp_path):
    async with open_stage(server, folder=tmp_path) as stage:
        async with stage.http() as http:
            assert (await http.post("/llm/v1/chat/completions", json=chat())).status_code == 200
        (upstream,) = stage.proxy._forwarder._upstreams.values()
        assert repr(upstream._connections) == "<ConnectionPool 1 idle>"
    assert repr(upstream._connections) == "<ConnectionPool 0 idle>"


class Recorded(httpcore2.AsyncNetworkStream):
    """The other side of a stream: what it was sent, and an answer that is already there."""

    def __init__(self, error=None):
        self.sent, self.error = [], error

    async def write(self, buffer, timeout=None):
        self.sent.append(buffer)
        if self.error:
            raise self.error

    async def read(self, max_bytes, timeout=None):
        return b"answer"


@pytest.mark.parametrize("error", [None, httpcore2.WriteError("reset")], ids=["whole", "refused"])
async def test_what_was_written_goes_out_in_one_piece_before_the_answer_is_read(error):
    below = Recorded(error)
    stream = CoalescingStream(below)
    await stream.write(b"head")
    await stream.write(b"body")
    assert below.sent == []
    assert [await stream.read(100), await stream.read(100)] == [b"answer", b"answer"]
    assert below.sent == [b"headbody"]


@pytest.mark.parametrize(("bypass", "is_proxied"), [("", True), ("127.0.0.1", False)])
async def test_the_environment_s_proxy_is_used_as_for_all_other_requests(server, monkeypatch, bypass, is_proxied):
    for name in ("HTTP_PROXY", "NO_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"127.0.0.1:{server.port}")
    monkeypatch.setenv("no_proxy", bypass)
    # A proxy is asked for whole addresses, which the stand-in does not have.
    async with open_endpoint_pool(LlmSettings(endpoints=[server.url], max_in_flight=1)) as fleet:
        connection = fleet.connector(server.url, CoalescingBackend())()
        response = await connection.handle_async_request(request_to(server))
        await response.aread()
        await connection.aclose()
        theirs = await fleet.client(server.url).post("/chat/completions", json=chat())
    assert [response.status, theirs.status_code] == ([404, 404] if is_proxied else [200, 200])
