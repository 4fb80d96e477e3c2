"""The HTTP client of a session: connections, redirects, cookies, users, proxies, TLS."""

from __future__ import annotations

import datetime
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from anyio.streams.tls import TLSListener
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from toolhub.channel.http_client import ConnectFailed, ConnectionBroken, HttpClient, HttpResponse, tls_context

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@dataclass
class Served:
    """What a server was asked. answers: by the first line of the request; others get OK."""

    port: int = 0
    answers: dict[bytes, bytes] = field(default_factory=dict)
    asked: list[bytes] = field(default_factory=list)
    connections: list[anyio.abc.ByteStream] = field(default_factory=list)
    open: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def header(self, name: bytes) -> bytes | None:
        """A header of the last request."""
        found = re.search(rb"\r\n%s: (.*?)\r\n" % name, self.asked[-1])
        return found[1] if found else None

    async def handle(self, stream: anyio.abc.ByteStream) -> None:
        self.connections.append(stream)
        self.open += 1
        received = b""
        try:
            while True:
                while b"\r\n\r\n" not in received:
                    received += await stream.receive()
                head, _, received = received.partition(b"\r\n\r\n")
                length = sum(int(found) for found in re.findall(rb"content-length: (\d+)", head))
                while len(received) < length:
                    received += await stream.receive()
                self.asked.append(head + b"\r\n\r\n" + received[:length])
                received = received[length:]
                await stream.send(self.answers.get(head.partition(b"\r\n")[0], OK))
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            self.open -= 1
            await anyio.aclose_forcefully(stream)


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Served]:
    served = Served()
    plain = await anyio.create_tcp_listener(local_host="127.0.0.1")
    served.port = plain.extra(anyio.abc.SocketAttribute.local_port)  # not Django's
    listener = TLSListener(plain, tls, standard_compatible=False) if tls else plain
    with anyio.fail_after(30):
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, served.handle)
            yield served
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def client_of(url: str, **headers: str) -> AsyncIterator[HttpClient]:
    client = HttpClient(url, headers, connect_timeout=20)
    try:
        yield client
    finally:
        client.close()


async def post(client: HttpClient, body: bytes = b"{}", **headers: str) -> tuple[int, bytes]:
    with await client.send("POST", headers, body) as response:
        read = b""
        while piece := await response.receive():
            read += piece
        return response.status, read


async def test_a_connection_is_used_again_but_not_after_the_server_closed_it() -> None:
    async with serving() as served, client_of(served.url) as client:
        assert [await post(client) for _ in range(3)] == [(200, b"ok")] * 3
        assert len(served.connections) == 1
        await served.connections[0].aclose()
        assert await post(client) == (200, b"ok")
        assert len(served.connections) == 2


async def test_a_response_that_was_not_read_to_its_end_gives_up_its_connection() -> None:
    async with serving() as served, client_of(served.url) as client:
        with await client.send("POST", {}, b"{}") as response:
            assert response.status == 200
        assert await post(client) == (200, b"ok")
        assert len(served.connections) == 2


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhalf", b"nonsense\r\n\r\n"])
async def test_a_connection_that_breaks_within_an_answer_is_told(answer: bytes) -> None:
    async with serving() as served, client_of(served.url) as client:
        served.answers[b"POST /mcp HTTP/1.1"] = answer

        async def cut() -> None:
            while not served.asked:
                await anyio.lowlevel.checkpoint()
            await served.connections[0].aclose()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cut)
            with pytest.raises(ConnectionBroken):
                await post(client)


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    async with serving() as served, client_of(served.url) as client:
        served.answers[b"POST /mcp HTTP/1.1"] = b"HTTP/1.1 200 OK\r\n\r\nall of it"
        with await client.send("POST", {}, b"{}") as response:
            assert await response.receive() == b"all of it"
            await served.connections[0].aclose()
            assert await response.receive() == b""


EVENTS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nanswer\r\n"


async def test_a_connection_whose_response_ends_soon_after_the_answer_is_used_again() -> None:
    async with serving() as served, client_of(served.url) as client:
        served.answers[b"POST /mcp HTTP/1.1"] = EVENTS
        response = await client.send("POST", {}, b"{}")
        assert await response.receive() == b"answer"
        response.close_soon()
        await served.connections[0].send(b"4\r\nrest\r\n0\r\n\r\n")
        served.answers.clear()
        while "idle=1" not in repr(client):
            await anyio.lowlevel.checkpoint()
        assert await post(client) == (200, b"ok")
        assert len(served.connections) == 1


async def test_a_connection_whose_response_goes_on_after_the_answer_is_closed() -> None:
    async with serving() as served, client_of(served.url) as client:
        served.answers[b"POST /mcp HTTP/1.1"] = EVENTS
        response = await client.send("POST", {}, b"{}")
        assert await response.receive() == b"answer"
        response.close_soon()
        while served.open:
            await anyio.sleep(0.01)


async def test_a_response_that_is_closed_after_its_client_leaves_no_connection() -> None:
    async with serving() as served:
        for close in (HttpResponse.close, HttpResponse.close_soon):
            client = HttpClient(served.url, {}, connect_timeout=30)
            response = await client.send("GET", {})
            assert await response.receive() == b"ok"
            client.close()
            close(response)
            while served.open:
                await anyio.lowlevel.checkpoint()


async def test_a_request_that_is_cancelled_at_any_moment_leaves_no_connection() -> None:
    completed = anyio.Event()

    async def ask(client: HttpClient) -> None:
        with await client.send("GET", {}) as response:
            await response.receive()
        completed.set()

    async with serving() as served:
        turns = 0
        while not completed.is_set():
            client = HttpClient(served.url, {}, connect_timeout=30)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, client)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            client.close()
            turns += 1
        while served.open:
            await anyio.lowlevel.checkpoint()


async def test_responses_before_the_final_one_and_white_space_in_headers_are_no_part_of_it() -> None:
    async with serving() as served, client_of(served.url) as client:
        hint = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
        padded = b"HTTP/1.1 200 OK\r\nContent-Type: \t text/event-stream \t \r\ncontent-length: 0\r\n\r\n"
        served.answers[b"POST /mcp HTTP/1.1"] = hint + padded
        with await client.send("POST", {}, b"{}") as response:
            assert (response.status, response.media_type) == (200, "text/event-stream")
            assert "link" not in response.headers
            assert await response.receive() == b""


@pytest.mark.parametrize(
    "endless",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" * 5000,
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 110_000,
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;" + b"x" * 110_000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n.\r\n0\r\n" + b"x: y\r\n" * 60_000,
    ],
    ids=["interim responses", "a header", "headers", "the size of a chunk", "trailers"],
)
async def test_a_response_that_goes_on_without_a_body_is_given_up(endless: bytes) -> None:
    async with serving() as served, client_of(served.url) as client:
        served.answers[b"POST /mcp HTTP/1.1"] = endless
        with pytest.raises(ConnectionBroken, match="bytes of headers"):
            await post(client)


async def test_a_response_that_nobody_asked_for_is_never_taken_for_an_answer() -> None:
    async with serving() as served, client_of(served.url) as client:
        served.answers[b"POST /mcp HTTP/1.1"] = OK + OK.replace(b"ok", b"no")
        assert await post(client) == (200, b"ok")
        served.answers.clear()
        assert await post(client) == (200, b"ok")
        assert len(served.connections) == 2


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_within_the_origin_is_followed_with_body_and_headers(status: int) -> None:
    async with serving() as served, client_of(served.url, Authorization="Bearer x") as client:
        moved = b"HTTP/1.1 %d Moved\r\nlocation: /mcp/\r\ncontent-length: 0\r\n\r\n" % status
        served.answers[b"POST /mcp HTTP/1.1"] = moved
        assert await post(client, b"body") == (200, b"ok")
        assert served.asked[-1].startswith(b"POST /mcp/ ") and served.asked[-1].endswith(b"\r\n\r\nbody")
        assert served.header(b"authorization") == b"Bearer x"


@pytest.mark.parametrize(
    ("status", "where"),
    [
        (307, "http://127.0.0.1:{other}/"),
        (307, "ftp://127.0.0.1/"),
        (302, "/else"),
        (307, "http://me@127.0.0.1:{own}/"),
    ],
)
async def test_a_redirect_that_leaves_the_origin_or_drops_the_body_is_not_followed(status: int, where: str) -> None:
    async with serving() as served, serving() as other, client_of(served.url) as client:
        location = where.format(other=other.port, own=served.port).encode()
        moved = b"HTTP/1.1 %d Moved\r\nlocation: %s\r\ncontent-length: 0\r\n\r\n" % (status, location)
        served.answers[b"POST /mcp HTTP/1.1"] = moved
        with await client.send("POST", {}, b"{}") as response:
            assert response.status == status and response.location is not None
        assert (len(served.asked), len(other.asked)) == (1, 0)


async def test_redirects_in_a_circle_end() -> None:
    async with serving() as served, client_of(served.url) as client:
        moved = b"HTTP/1.1 307 Moved\r\nlocation: /mcp\r\ncontent-length: 0\r\n\r\n"
        served.answers[b"POST /mcp HTTP/1.1"] = moved
        with await client.send("POST", {}, b"{}") as response:
            assert response.status == 307


async def test_cookies_come_back_as_load_balancers_need_it() -> None:
    async with serving() as served, client_of(served.url) as client:
        served.answers[b"POST /mcp HTTP/1.1"] = OK.replace(b"\r\n\r\n", b"\r\nset-cookie: node=7; path=/\r\n\r\n")
        await post(client)
        assert served.header(b"cookie") is None
        await post(client)
        assert served.header(b"cookie") == b"node=7"


async def test_a_user_in_the_address_is_sent_and_not_told() -> None:
    async with serving() as served:
        url = f"http://me:hunter2@127.0.0.1:{served.port}/mcp?key=hunter2"
        async with client_of(url) as client:
            await post(client)
            assert served.header(b"authorization") == b"Basic bWU6aHVudGVyMg=="
            assert served.asked[0].startswith(b"POST /mcp?key=hunter2 ")
            assert "hunter2" not in client.address + repr(client)


async def test_a_header_cannot_bring_another_and_its_value_is_not_told() -> None:
    async with serving() as served, client_of(served.url) as client:
        with pytest.raises(ValueError, match="characters that HTTP does not allow") as refused:
            await post(client, secret="hunter2\r\nhost: else")
        assert "hunter2" not in str(refused.value) and not served.asked
        assert await post(client, name="größe") == (200, b"ok")
        assert served.header(b"name") == "größe".encode("latin-1")


async def test_answers_are_asked_for_uncompressed_whatever_the_config_says() -> None:
    async with serving() as served, client_of(served.url, **{"Accept-Encoding": "gzip", "User-Agent": "me"}) as client:
        await post(client)
        assert (served.header(b"accept-encoding"), served.header(b"user-agent")) == (b"identity", b"me")


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "/mcp", "http:///mcp"])
def test_what_is_no_address_of_http_is_refused(url: str) -> None:
    with pytest.raises(ValueError):  # the text is httpx2's in part
        HttpClient(url, {}, connect_timeout=1)


# --- proxies ----------------------------------------------------------------------------------------------------------


async def test_a_proxy_of_the_environment_gets_requests_for_plain_http(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as proxy:
        monkeypatch.setenv("http_proxy", f"http://me:pass@127.0.0.1:{proxy.port}")
        async with client_of("http://tools.invalid/mcp") as client:
            assert await post(client) == (200, b"ok")
        assert proxy.asked[0].startswith(b"POST http://tools.invalid/mcp HTTP/1.1\r\n")
        assert proxy.header(b"host") == b"tools.invalid"
        assert proxy.header(b"proxy-authorization") == b"Basic bWU6cGFzcw=="


async def test_no_proxy_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served, serving() as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with client_of(served.url) as client:
            assert await post(client) == (200, b"ok")
        assert (len(served.asked), len(proxy.asked)) == (1, 0)


async def test_a_proxy_opens_a_tunnel_for_tls_and_its_refusal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        proxy.answers[b"CONNECT tools.invalid:443 HTTP/1.1"] = b"HTTP/1.1 403 No\r\ncontent-length: 0\r\n\r\n"
        async with client_of("https://tools.invalid/mcp", Authorization="Bearer x") as client:
            with pytest.raises(ConnectFailed, match="the proxy 127.0.0.1.* answered with HTTP 403"):
                await post(client)
        assert proxy.header(b"authorization") is None, "what is for the server is not for the proxy"


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Certificate and key of `localhost`, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = tmp_path / "localhost.pem"
    path.write_bytes(private + made.public_bytes(pem))
    return path


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture(autouse=True)
def fresh_authorities() -> None:
    tls_context.cache_clear()


async def test_a_certificate_of_an_unknown_authority_is_refused(tls: ssl.SSLContext) -> None:
    async with serving(tls) as served, client_of(f"https://localhost:{served.port}/") as client:
        with pytest.raises(ConnectFailed, match="(?i)certificate verify failed"):
            await post(client)
        assert not served.asked


async def test_authorities_of_the_environment_are_trusted_and_loaded_once(
    tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with serving(tls) as served:
        for _ in range(2):
            async with client_of(f"https://localhost:{served.port}/") as client:
                assert await post(client) == (200, b"ok")
    assert tls_context.cache_info().misses == 1
