"""The sandbox proxy's limits in time, on a clock that the tests move. The sockets are real."""

from __future__ import annotations

import socket
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address

import anyio
import anyio.abc
import pytest
from toolhub_sandbox.proxy.server import CONNECT_S, HEAD_S, IDLE_S, LINGER_S
from trio.testing import MockClock

from tests.toolhub_sandbox.proxy.proxy_stage import (
    echo,
    expect,
    open_origin,
    open_proxy,
    open_sockets,
    open_tunnel,
    read_all,
    resolver,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock():
    """Stands still, except that a test which waits in vain runs into its `fail_after` instead of hanging."""
    return MockClock(autojump_threshold=2)


@pytest.fixture
def anyio_backend(clock):
    return "trio", {"clock": clock}


async def pass_time(clock, seconds):
    """Move the clock once everything that happens by now has happened."""
    await anyio.wait_all_tasks_blocked()
    clock.jump(seconds)
    await anyio.wait_all_tasks_blocked()


async def test_a_head_that_drips_in_is_cut_off_however_it_drips(clock):
    async with open_proxy("example.org") as proxy, await anyio.connect_tcp("127.0.0.1", proxy.port) as client:
        for _ in range(9):
            await client.send(b"G")
            await pass_time(clock, HEAD_S / 10)
        await client.send(b"G")
        await pass_time(clock, HEAD_S / 5)
        assert (await read_all(client)).startswith(b"HTTP/1.1 408 the head of the request did not arrive within 10 s")


async def test_a_lookup_that_never_ends_gives_504(clock):
    async def hangs(host, port):
        await anyio.sleep_forever()

    async with open_proxy("example.org", resolve=hangs) as proxy, anyio.create_task_group() as group:
        group.start_soon(assert_gives_504, proxy.port, "example.org:443")
        await pass_time(clock, CONNECT_S)


async def test_an_upstream_that_never_accepts_gives_504(clock):
    with never_accepts("127.0.0.1") as port:
        async with open_proxy(f"127.0.0.1:{port}") as proxy, anyio.create_task_group() as group:
            group.start_soon(assert_gives_504, proxy.port, f"127.0.0.1:{port}")
            await pass_time(clock, CONNECT_S)


@contextmanager
def never_accepts(host, port=0):
    """A listening port whose queue is full: the kernel ignores further attempts to connect. Gives the port."""
    with ExitStack() as sockets:
        full = sockets.enter_context(socket.create_server((host, port), backlog=0))
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        yield full.getsockname()[1]


async def assert_gives_504(proxy_port, authority):
    async with await anyio.connect_tcp("127.0.0.1", proxy_port) as client:
        await client.send(f"CONNECT {authority} HTTP/1.1\r\n\r\n".encode())
        answer = await client.receive()  # no deadline of its own: the clock jumps past every one of them
        assert answer.startswith(f"HTTP/1.1 504 {authority} did not answer within 15 s\r\n".encode())


async def test_a_tunnel_lives_while_either_side_speaks_and_is_reset_when_both_are_silent(clock):
    heard = bytearray()

    async def listens(stream: anyio.abc.SocketStream) -> None:
        async for data in stream:
            heard.extend(data)

    async with open_origin(listens) as port, open_proxy(f"127.0.0.1:{port}") as proxy:
        async with open_tunnel(proxy.port, f"127.0.0.1:{port}") as client:
            for _ in range(3):
                await pass_time(clock, IDLE_S - 1)
                await client.send(b"x")
            await anyio.wait_all_tasks_blocked()
            assert heard == b"xxx"
            await pass_time(clock, IDLE_S + 1)
            with pytest.raises(anyio.BrokenResourceError):
                await read_all(client)


async def test_a_refused_client_that_stays_loses_its_place_soon(clock):
    async with open_proxy("example.org") as proxy:
        before = open_sockets()
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            client.sendall(b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n")
            await anyio.wait_all_tasks_blocked()
            assert len(open_sockets() - before) == 2
            await pass_time(clock, LINGER_S)
            assert len(open_sockets() - before) == 1
            assert client.recv(12) == b"HTTP/1.1 403"


async def test_a_keep_alive_client_is_let_go_after_its_one_answer(clock):
    async def answers(stream: anyio.abc.SocketStream) -> None:
        await stream.receive()
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with open_origin(answers) as port, open_proxy(f"127.0.0.1:{port}") as proxy:
        before = open_sockets()
        async with await anyio.connect_tcp("127.0.0.1", proxy.port) as client:
            await client.send(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n".encode())
            await expect(client, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            await pass_time(clock, LINGER_S)
            assert len(open_sockets() - before) == 1


async def test_an_address_that_hangs_leaves_time_for_the_next(clock):
    both = resolver([ip_address("127.0.0.2"), ip_address("127.0.0.1")])
    async with open_origin(echo) as port, open_proxy(f"localhost:{port}", resolve=both) as proxy:
        with never_accepts("127.0.0.2", port):
            async with await anyio.connect_tcp("127.0.0.1", proxy.port) as client:
                await client.send(f"CONNECT localhost:{port} HTTP/1.1\r\n\r\nhello".encode())
                await pass_time(clock, CONNECT_S / 2)
                await expect(client, b"HTTP/1.1 200 Connection established\r\n\r\nhello")
