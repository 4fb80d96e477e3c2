"""The sandbox proxy between real sockets."""

from __future__ import annotations

import errno
import http.client
import logging
import os
import socket
import urllib.error
import urllib.request
from ipaddress import ip_address

import anyio
import anyio.abc
import anyio.to_thread
import httpx2
import pytest
from toolhub_sandbox.proxy.rules import AllowRules
from toolhub_sandbox.proxy.server import CONNECTIONS, HEAD_BYTES, run_proxy

from tests.toolhub_sandbox.proxy.proxy_stage import (
    PATIENCE_S,
    ask,
    echo,
    expect,
    http_origin,
    open_origin,
    open_proxy,
    open_sockets,
    open_tunnel,
    read_all,
    resolver,
)

pytestmark = pytest.mark.anyio

KEY = "sandbox.profiles.web.network.allow"
LOOPBACK = ip_address("127.0.0.1")
MIB = 1 << 20


async def test_httpx_gets_and_posts_through_the_proxy():
    with http_origin() as port:
        async with (
            open_proxy(f"127.0.0.1:{port}") as proxy,
            httpx2.AsyncClient(proxy=proxy.url, trust_env=False) as client,
        ):
            with anyio.fail_after(PATIENCE_S):
                got = await client.get(f"http://127.0.0.1:{port}/a?b=c", headers={"Proxy-Authorization": "secret"})
                posted = await client.post(f"http://127.0.0.1:{port}/p", content=b"x" * 200_000)
    assert got.text.startswith("GET /a?b=c\n")
    assert f"Host: 127.0.0.1:{port}\n" in got.text
    assert "secret" not in got.text
    assert posted.text.startswith("POST /p\n")
    assert posted.text.endswith("\n" + "x" * 200_000)


async def test_urllib_is_told_which_host_and_which_key():
    def fetch(proxy_url):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": proxy_url, "https": proxy_url}))
        with pytest.raises(urllib.error.HTTPError) as plain:
            opener.open("http://evil.example/?token=hunter2", timeout=PATIENCE_S)
        with plain.value as answer:
            assert answer.code == 403
            assert answer.read().decode() == f"evil.example:80 is not in {KEY}\n"
        with pytest.raises(OSError, match=f"403 evil.example:443 is not in {KEY}"):
            opener.open("https://evil.example/", timeout=PATIENCE_S)

    async with open_proxy("example.org") as proxy:
        with anyio.fail_after(PATIENCE_S):
            await anyio.to_thread.run_sync(fetch, proxy.url)


async def test_a_standard_client_talks_http_through_a_tunnel():
    def fetch(proxy_port, port):
        connection = http.client.HTTPConnection("127.0.0.1", proxy_port, timeout=PATIENCE_S)
        connection.set_tunnel("127.0.0.1", port)
        try:
            connection.request("GET", "/first")
            return connection.getresponse().read()
        finally:
            connection.close()

    with http_origin() as port:
        async with open_proxy(f"127.0.0.1:{port}") as proxy:
            with anyio.fail_after(PATIENCE_S):
                first = await anyio.to_thread.run_sync(fetch, proxy.port, port)
    assert first.startswith(b"GET /first\n")


async def test_a_tunnel_passes_on_the_end_of_one_side_and_keeps_the_other_open():
    async with open_origin(echo) as port, open_proxy(f"127.0.0.1:{port}") as proxy:
        async with open_tunnel(proxy.port, f"127.0.0.1:{port}") as tunnel:
            await tunnel.send(b"hello")
            await expect(tunnel, b"hello")
            await tunnel.send_eof()
            assert await read_all(tunnel) == b"<end>"


async def test_a_tunnel_stays_open_for_a_client_after_the_upstream_has_ended():
    rest = bytearray()
    done = anyio.Event()

    async def ends_first(stream: anyio.abc.SocketStream) -> None:
        await stream.send_eof()
        rest.extend(await read_all(stream))
        done.set()

    async with open_origin(ends_first) as port, open_proxy(f"127.0.0.1:{port}") as proxy:
        async with open_tunnel(proxy.port, f"127.0.0.1:{port}") as client:
            assert await read_all(client) == b""
            await client.send(b"still here")
            await client.send_eof()
            with anyio.fail_after(PATIENCE_S):
                await done.wait()
    assert rest == b"still here"


async def test_what_a_client_sends_together_with_its_head_is_not_lost():
    async with open_origin(echo) as port, open_proxy(f"127.0.0.1:{port}") as proxy:
        async with await anyio.connect_tcp("127.0.0.1", proxy.port) as client:
            await client.send(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\nearly".encode())
            await expect(client, b"HTTP/1.1 200 Connection established\r\n\r\nearly")


async def test_a_head_in_single_bytes_is_understood():
    async with open_origin(echo) as port, open_proxy(f"127.0.0.1:{port}") as proxy:
        async with await anyio.connect_tcp("127.0.0.1", proxy.port) as client:
            for byte in f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode():
                await client.send(bytes([byte]))
            await expect(client, b"HTTP/1.1 200 ")


async def test_a_second_request_on_the_connection_reaches_nobody():
    seen = bytearray()

    async def answers_and_keeps_open(stream: anyio.abc.SocketStream) -> None:
        async for data in stream:
            seen.extend(data)
            if seen.endswith(b"body"):
                await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with open_origin(answers_and_keeps_open) as port, open_proxy(f"127.0.0.1:{port}") as proxy:
        async with await anyio.connect_tcp("127.0.0.1", proxy.port) as client:
            head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nContent-Length: 4\r\n\r\n"
            await client.send(head.encode() + b"bodyGET http://other.example/ HTTP/1.1\r\n\r\n")
            await expect(client, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            await client.send(b"GET http://other.example/ HTTP/1.1\r\n\r\n")
            await client.send_eof()
            assert await read_all(client) == b""
    assert seen.endswith(b"\r\n\r\nbody")
    assert b"other.example" not in seen


@pytest.mark.parametrize(
    ("request_head", "status", "reason"),
    [
        (b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n", 403, "evil.example:443 is not in"),
        (b"CONNECT example.org:25 HTTP/1.1\r\n\r\n", 403, "example.org:25 is not in"),
        (b"CONNECT 169.254.169.254:80 HTTP/1.1\r\n\r\n", 403, "169.254.169.254:80 is not in"),
        (b"CONNECT [::ffff:127.0.0.1]:80 HTTP/1.1\r\n\r\n", 403, "is not in"),
        (b"GET http://example.org.evil.example/ HTTP/1.1\r\n\r\n", 403, "example.org.evil.example:80 is not in"),
        (b"GET http://me:hunter2@example.org/ HTTP/1.1\r\n\r\n", 400, "user and password"),
        (b"CONNECT example.org:99999 HTTP/1.1\r\n\r\n", 400, "the port is not"),
        (b"CONNECT 127.1:80 HTTP/1.1\r\n\r\n", 400, "bad proxy request"),
        (b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n", 400, "the target is not http://host/"),
        (b"GET http://example.org/ HTTP/1.1\n\n", 400, "does not end with CR LF"),
        (b"GET http://example.org/\x00 HTTP/1.1\r\n\r\n", 400, "control character"),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400, "control character"),
        (b"G" * 4 * HEAD_BYTES, 400, f"longer than {HEAD_BYTES} bytes"),
        (b"GET http://example.org/?" + b"hunter2" * HEAD_BYTES, 400, f"longer than {HEAD_BYTES} bytes"),
    ],
)
async def test_a_refusal_says_why_and_where_the_list_is(request_head, status, reason):
    async with open_proxy("example.org") as proxy:
        answer = await ask(proxy.port, request_head)
    head, _, body = answer.decode().partition("\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ")
    assert reason in body
    assert KEY in body
    assert body.rstrip() in head
    assert "hunter2" not in body


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "169.254.169.254", "::ffff:10.0.0.1", "64:ff9b::a00:1"])
async def test_a_listed_name_that_resolves_to_a_private_address_is_refused(address):
    async with open_proxy("example.org", resolve=resolver([ip_address(address)])) as proxy:
        answer = await ask(proxy.port, b"CONNECT example.org:443 HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403 example.org:443 has no public address; " + KEY.encode())
    assert address.encode() not in answer


async def test_a_name_is_looked_up_once_and_the_address_that_was_judged_is_used():
    async with open_origin(echo) as port:
        changes_its_mind = resolver([ip_address("10.0.0.1"), LOOPBACK], [ip_address("127.0.0.2")])
        async with open_proxy(f"localhost:{port}", resolve=changes_its_mind) as proxy:
            async with open_tunnel(proxy.port, f"LOCALHOST.:{port}") as client:
                await client.send(b"hello")
                await expect(client, b"hello")
    assert await changes_its_mind("localhost", port) == [ip_address("127.0.0.2")]  # nobody has asked for it


async def test_an_ip_address_is_never_looked_up():
    nobody_asks = resolver()
    async with open_origin(echo) as port, open_proxy(f"127.0.0.1:{port}", resolve=nobody_asks) as proxy:
        async with open_tunnel(proxy.port, f"127.0.0.1:{port}") as tunnel:
            await tunnel.send(b"hello")
            await expect(tunnel, b"hello")


async def test_without_a_resolver_the_systems_own_is_asked():
    async with open_origin(echo) as port, open_proxy(f"localhost:{port}") as proxy:
        async with open_tunnel(proxy.port, f"localhost:{port}") as client:
            await client.send(b"hello")
            await expect(client, b"hello")


async def test_an_upstream_that_refuses_gives_502_with_the_reason():
    with socket.socket() as bound:  # nobody listens, and nobody else can take the port
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        async with open_proxy(f"127.0.0.1:{port}") as proxy:
            answer = await ask(proxy.port, f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
    assert answer.startswith(f"HTTP/1.1 502 127.0.0.1:{port} cannot be reached: Connection refused\r\n".encode())


async def test_a_name_that_nobody_knows_gives_502_with_the_reason():
    async def unknown(host, port):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service\r\nnot known")

    async with open_proxy("example.org", resolve=unknown) as proxy:
        answer = await ask(proxy.port, b"GET http://example.org/ HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 502 example.org:80 cannot be reached: Name or service not known\r\n")


async def test_a_connection_that_breaks_the_proxys_own_code_ends_alone(caplog):
    async def broken(host, port):
        raise RuntimeError("a bug")

    async with open_proxy("example.org", resolve=broken) as proxy:
        assert await ask(proxy.port, b"CONNECT example.org:443 HTTP/1.1\r\n\r\n") == b""
        assert (await ask(proxy.port, b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 403")
    assert "a connection of the sandbox proxy failed" in caplog.text


async def test_clients_that_leave_at_any_point_harm_nobody():
    async with open_origin(echo) as port, open_proxy(f"127.0.0.1:{port}") as proxy:
        head = f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode()
        for sent in (b"", head[:9], head, head + b"x", b"GET http://evil.example/ HTTP/1.1\r\n\r\n"):
            for ends in (False, True):
                client = socket.create_connection(("127.0.0.1", proxy.port))
                client.sendall(sent)
                if not ends:  # a reset instead of an end
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                client.close()
        async with open_tunnel(proxy.port, f"127.0.0.1:{port}") as tunnel:
            await tunnel.send(b"hello")
            await expect(tunnel, b"hello")


async def test_a_reset_upstream_is_a_reset_for_the_client():
    async def resets(stream: anyio.abc.SocketStream) -> None:
        await stream.receive()
        raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")

    async with open_origin(resets) as port, open_proxy(f"127.0.0.1:{port}") as proxy:
        async with open_tunnel(proxy.port, f"127.0.0.1:{port}") as client:
            await client.send(b"x")
            with pytest.raises(anyio.BrokenResourceError):
                await read_all(client)


async def test_connections_beyond_the_limit_wait_until_one_ends():
    async with open_origin(echo) as port, open_proxy(f"127.0.0.1:{port}") as proxy:
        tunnels = [open_tunnel(proxy.port, f"127.0.0.1:{port}") for _ in range(CONNECTIONS)]
        clients = [await tunnel.__aenter__() for tunnel in tunnels]
        async with await anyio.connect_tcp("127.0.0.1", proxy.port) as late, anyio.create_task_group() as group:
            await late.send(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\nlate".encode())
            answered = anyio.Event()

            async def wait_answered() -> None:
                await expect(late, b"HTTP/1.1 200 Connection established\r\n\r\nlate")
                answered.set()

            group.start_soon(wait_answered)
            await clients[1].send(b"the others go on")
            await expect(clients[1], b"the others go on")
            await anyio.wait_all_tasks_blocked()
            assert not answered.is_set()
            await clients[0].aclose()
            with anyio.fail_after(PATIENCE_S):
                await answered.wait()
        for tunnel in tunnels:
            await tunnel.__aexit__(None, None, None)


async def test_a_client_that_does_not_read_stops_the_upstream_and_then_gets_every_byte():
    total, piece = 128 * MIB, bytes(range(256)) * 256
    sent = 0

    async def pours(stream: anyio.abc.SocketStream) -> None:
        nonlocal sent
        while sent < total:
            await stream.send(piece)
            sent += len(piece)

    async with open_origin(pours) as port, open_proxy(f"127.0.0.1:{port}") as proxy:
        async with open_tunnel(proxy.port, f"127.0.0.1:{port}") as client:
            before = -1
            with anyio.fail_after(PATIENCE_S):
                while before != sent:
                    before = sent
                    await anyio.wait_all_tasks_blocked()
            assert 0 < sent < total // 2  # the buffers of two kernels' sockets, and 64 KiB between them
            received = 0
            with anyio.fail_after(6 * PATIENCE_S):
                async for data in client:
                    offset = received % 256
                    assert data[:256] == piece[offset : offset + min(256, len(data))]
                    received += len(data)
    assert received == total


async def test_big_uploads_arrive_as_they_were_sent():
    data = bytes(range(256)) * (16 * MIB // 256)

    async with open_origin(echo) as port, open_proxy(f"127.0.0.1:{port}") as proxy:
        async with open_tunnel(proxy.port, f"127.0.0.1:{port}") as client, anyio.create_task_group() as group:

            async def upload() -> None:
                await client.send(data)
                await client.send_eof()

            group.start_soon(upload)
            with anyio.fail_after(4 * PATIENCE_S):
                got = b"".join([piece async for piece in client])
    assert got == data + b"<end>"


async def test_an_answer_given_before_the_upload_ended_still_arrives():
    async def refuses(stream: anyio.abc.SocketStream) -> None:
        await stream.receive()
        await stream.send(b"HTTP/1.1 413 Too Large\r\n\r\n")

    async with open_origin(refuses) as port, open_proxy(f"127.0.0.1:{port}") as proxy:
        async with await anyio.connect_tcp("127.0.0.1", proxy.port) as client:
            head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nContent-Length: {16 * MIB}\r\n\r\n"
            await client.send(head.encode())
            await expect(client, b"HTTP/1.1 413 Too Large\r\n\r\n")


async def test_cancelling_leaves_no_socket_open():
    async with open_origin(echo) as port:
        before = open_sockets()
        async with open_proxy(f"127.0.0.1:{port}") as proxy:
            tunnel = open_tunnel(proxy.port, f"127.0.0.1:{port}")
            client = await tunnel.__aenter__()
            idle = socket.create_connection(("127.0.0.1", proxy.port))
            await anyio.wait_all_tasks_blocked()
            mine = {f"socket:[{number}]" for number in socket_numbers(client, idle)}
            assert len(open_sockets() - before - mine) >= 3  # the listener and both sides of the tunnel
            proxy.cancel()
        assert proxy.listener.fileno() == -1
        assert await read_until_gone(client) == b""
        idle.close()
        await tunnel.__aexit__(None, None, None)
        with anyio.fail_after(PATIENCE_S):
            while open_sockets() - before:  # the origin's own side of the tunnel
                await anyio.wait_all_tasks_blocked()


def socket_numbers(client, idle):
    raw = client.extra(anyio.abc.SocketAttribute.raw_socket)
    return [os.fstat(each.fileno()).st_ino for each in (raw, idle)]


async def read_until_gone(client):
    try:
        return await read_all(client)
    except anyio.BrokenResourceError:
        return b""


async def test_refused_hosts_are_logged_once_and_never_their_urls(caplog):
    caplog.set_level(logging.INFO, "toolhub_sandbox.proxy")
    async with open_proxy("example.org") as proxy:
        for path in ("?token=hunter2", "again", "again"):
            await ask(proxy.port, f"GET http://evil.example/{path} HTTP/1.1\r\n\r\n".encode())
        await ask(proxy.port, b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n")
    told = [record.getMessage() for record in caplog.records if record.name == "toolhub_sandbox.proxy"]
    assert told == [f"the sandbox proxy refused a connection: evil.example:80 is not in {KEY}"]


async def test_the_memory_of_what_was_logged_is_bounded(caplog, monkeypatch):
    monkeypatch.setattr("toolhub_sandbox.proxy.server._NAMES_LOGGED", 3)
    caplog.set_level(logging.INFO, "toolhub_sandbox.proxy")
    async with open_proxy("example.org") as proxy:
        for number in range(6):
            await ask(proxy.port, f"CONNECT {number}.example:443 HTTP/1.1\r\n\r\n".encode())
    assert len(caplog.records) == 3
    assert "more will not be logged" in caplog.text


async def test_a_listener_of_no_use_is_an_error_of_the_proxy():
    with socket.socket() as unbound:
        with anyio.fail_after(PATIENCE_S), pytest.raises(ExceptionGroup) as caught:
            await run_proxy(unbound, AllowRules.of(["example.org"]))
    assert caught.group_contains(OSError)


class Starved(socket.socket):
    """A listener whose first attempts fail, as they do when a process has no descriptors left."""

    failures = 2

    def accept(self):
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


async def test_running_out_of_descriptors_is_waited_out():
    listener = Starved(fileno=socket.create_server(("127.0.0.1", 0)).detach())
    port = listener.getsockname()[1]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_proxy, listener, AllowRules.of(["example.org"]))
        with anyio.fail_after(PATIENCE_S):
            assert (await ask(port, b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 403")
        tasks.cancel_scope.cancel()
