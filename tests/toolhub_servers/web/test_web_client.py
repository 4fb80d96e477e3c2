"""The web client over real sockets: the pool, bodies, failures in words, and the whole deadline."""

from __future__ import annotations

import gzip
import os
import tracemalloc
import zlib

import anyio
import httpcore2
import pytest
from anyio.streams.tls import TLSStream
from toolhub_servers.web.client import open_web
from toolhub_servers.web.errors import BadStatus, Forbidden, Unreachable, WebTimeout
from toolhub_servers.web.settings import WebSettings
from web_stage import (
    PATIENCE_S,
    PUBLIC,
    Asked,
    Hangup,
    Names,
    Origin,
    Wires,
    http,
    listening,
    make_certificate,
    open_client,
    open_origin,
    open_sockets,
    open_wired_client,
    script,
)

from toolhub.shared_resources import open_shared_resources

pytestmark = pytest.mark.anyio

MIB = 1 << 20


async def test_one_connection_serves_300_requests_in_a_row():
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(http(body=b"hi"))) as origin, open_client(origin) as web:
            for _ in range(300):
                assert (await web.get(origin.url())).body == b"hi"
            assert origin.connections == web.statistics().connections_opened == 1
            assert web.statistics().reused_share == pytest.approx(299 / 300)


async def test_60_callers_of_one_host_share_as_few_connections_as_it_gets_requests_at_once():
    async def answer(asked: Asked) -> bytes:
        await anyio.wait_all_tasks_blocked()
        return http(body=asked.target.encode())

    with anyio.fail_after(PATIENCE_S):
        async with open_origin(answer) as origin, open_client(origin, per_host=4) as web:
            got = set()

            async def ask(number: int) -> None:
                got.add((await web.get(origin.url(f"/{number}"))).body)

            async with anyio.create_task_group() as asking:
                for number in range(60):
                    asking.start_soon(ask, number)
            assert len(got) == 60
            assert origin.most_at_once == 4
            assert origin.connections == web.statistics().connections_opened <= 4


async def test_equal_settings_share_a_client_and_others_do_not():
    with anyio.fail_after(PATIENCE_S):
        async with open_shared_resources() as resources:
            web = await open_web(resources, "pages")
            assert await open_web(resources, "pages", WebSettings()) is web
            assert await open_web(resources, "pages", WebSettings(retries=1)) is not web
            assert await open_web(resources, "serper") is not web
            plain, special, other = resources.statistics()
            assert (plain, other) == ("http pages", "http serper") and special.startswith("http pages ")


async def test_json_goes_out_as_json_and_comes_back_with_lower_case_headers():
    async def answer(asked: Asked) -> bytes:
        return http(body=asked.body, Content_Type="application/JSON; charset=utf-8", X_Two="a")

    with anyio.fail_after(PATIENCE_S):
        async with open_origin(answer) as origin, open_client(origin) as web:
            reply = await web.request("post", origin.url("/a?b=c#d"), json={"q": "ä"}, headers={"X-Key": "k"})
            assert (reply.status, reply.json(), reply.content_type) == (200, {"q": "ä"}, "application/json")
            assert (reply.headers["x-two"], reply.is_cut) == ("a", False)
            asked = origin.asked[0]
            assert (asked.method, asked.target, asked.headers["x-key"]) == ("POST", "/a?b=c", "k")
            assert asked.headers["content-type"] == "application/json"
            assert asked.headers["user-agent"].startswith("toolhub/")


# --- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda data: zlib.compress(data)[2:-4]),
        ("gzip", lambda data: gzip.compress(data[:1000]) + gzip.compress(data[1000:]) + b"\0\0"),
        ("identity", bytes),
    ],
    ids=["gzip", "zlib", "bare deflate", "two members and padding", "identity"],
)
async def test_encoded_bodies_are_decoded(encoding, encode):
    body = os.urandom(5000) + bytes(MIB)
    answer = script(http(body=encode(body), Content_Encoding=encoding))
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(answer) as origin, open_client(origin) as web:
            reply = await web.get(origin.url())
            assert reply.body == body and not reply.is_cut


async def test_a_gzip_bomb_is_cut_and_costs_no_more_than_the_limit():
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join([*(packer.compress(bytes(MIB)) for _ in range(200)), packer.flush()])
    assert len(bomb) < MIB
    answer = script(http(body=bomb, Content_Encoding="gzip"))
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(answer) as origin, open_client(origin) as web:
            await web.get(origin.url(), max_bytes=1)  # what is set up once is not what this is about
            tracemalloc.start()
            try:
                reply = await web.get(origin.url(), max_bytes=4 * MIB)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert reply.is_cut and len(reply.body) == 4 * MIB
            assert peak < 7 * MIB
            assert web.statistics().cut == 2


async def test_an_endless_body_is_cut_at_exactly_the_limit():
    async def serve_forever(stream):
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
            with pytest.raises(anyio.BrokenResourceError):
                while True:
                    await stream.send(b"x" * 65536)

    with anyio.fail_after(PATIENCE_S):
        async with listening(serve_forever) as port:
            origin = Origin(script(), port=port)
            async with open_client(origin) as web:
                reply = await web.get(origin.url(), max_bytes=100_000)
                assert reply.is_cut and reply.body == b"x" * 100_000


async def test_a_body_of_just_the_limit_is_not_cut():
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(http(body=b"12345"))) as origin, open_client(origin) as web:
            assert not (await web.get(origin.url(), max_bytes=5)).is_cut
            assert (await web.get(origin.url(), max_bytes=4)).body == b"1234"


@pytest.mark.parametrize(
    ("body", "encoding", "reason"),
    [
        (gzip.compress(bytes(5000), mtime=0)[:-20], "gzip", "ended too soon"),
        (b"plain text", "gzip", "damaged"),
        (b"?", "br", "the request did not offer: 'br'"),
    ],
)
async def test_a_body_that_is_not_what_it_says_is_an_error_in_words(body, encoding, reason):
    answer = script(http(body=body, Content_Encoding=encoding))
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(answer) as origin, open_client(origin, retries=0) as web:
            with pytest.raises(Unreachable, match=reason) as raised:
                await web.get(origin.url())
            assert raised.value.sent


# --- failures ---------------------------------------------------------------------------------------------------------


async def test_a_status_of_400_or_more_is_an_error_with_the_start_of_its_text():
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(http(404, b"no such page"))) as origin, open_client(origin) as web:
            with pytest.raises(BadStatus, match=f"^127.0.0.1:{origin.port} answered 404 Not Found$") as raised:
                await web.get(origin.url("/?api_key=secret"))
            assert (raised.value.status, raised.value.text) == (404, "no such page")
            reply = await web.get(origin.url(), raise_for_status=False)
            assert (reply.status, reply.body) == (404, b"no such page")
            assert len(origin.asked) == 2


@pytest.mark.parametrize("last", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"], ids=["head", "body"])
async def test_a_connection_that_breaks_is_tried_again_only_if_that_is_safe(last):
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(Hangup(last), http(body=b"ok"))) as origin, open_client(origin) as web:
            assert (await web.get(origin.url())).body == b"ok"
            assert web.statistics().retries == 1
        async with open_origin(script(Hangup(last), http(body=b"ok"))) as origin, open_client(origin) as web:
            with pytest.raises(Unreachable, match="broke") as raised:
                await web.request("POST", origin.url(), json={})
            assert raised.value.sent and len(origin.asked) == 1


async def test_nobody_listening_is_unreachable_and_nothing_was_sent():
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(http())) as gone:
            pass
        async with open_client(gone, retries=1) as web:
            with pytest.raises(Unreachable, match=f"no connection to 127.0.0.1:{gone.port}: Connection refused") as got:
                await web.request("POST", gone.url(), content=b"x")
            assert not got.value.sent
            assert web.statistics().retries == 1  # nothing was sent, so even a POST may go again


async def test_an_answer_that_drips_ends_at_the_deadline_of_the_whole_request():
    async def drips(stream):
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            with pytest.raises(anyio.BrokenResourceError):
                while True:
                    await stream.send(b"x")
                    await anyio.sleep(0.01)

    with anyio.fail_after(PATIENCE_S):
        async with listening(drips) as port:
            origin = Origin(script(), port=port)
            async with open_client(origin) as web:
                with pytest.raises(WebTimeout, match=f"127.0.0.1:{port} did not answer completely within 0.1 s"):
                    await web.get(origin.url(), timeout=0.1)
                assert web.statistics().connections_open == 0


@pytest.mark.parametrize(
    "url", ["ftp://example.org/", "file:///etc/passwd", "example.org", "http://", "http://[::1", ""]
)
async def test_what_is_no_web_address_is_forbidden(url):
    async with open_client() as web:
        with pytest.raises(Forbidden):
            await web.get(url)
        assert web.statistics().refused == 1


@pytest.mark.parametrize("header", [{"X-A": "s3\r\nX-C: d"}, {"X A": "s3"}, {"X:A": "s3"}, {"": "s3"}])
async def test_a_header_that_is_none_is_not_sent(header):
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(http())) as origin, open_client(origin) as web:
            with pytest.raises(Unreachable, match="cannot be sent") as refused:
                await web.get(origin.url(), headers=header)
            assert origin.connections == 0 and "s3" not in str(refused.value)


async def test_a_key_that_was_read_with_its_line_end_is_sent_without():
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(http())) as origin, open_client(origin) as web:
            await web.get(origin.url(), headers={"X-Key": "k\n", "Host": "other.example", "Content-Length": "7"})
            headers = origin.asked[0].headers
            assert (headers["x-key"], headers["host"]) == ("k", f"127.0.0.1:{origin.port}")
            assert "content-length" not in headers


async def test_a_repeated_header_is_joined():
    answer = script(b"HTTP/1.1 200 OK\r\nVary: a\r\nvary: b\r\nContent-Length: 0\r\n\r\n")
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(answer) as origin, open_client(origin) as web:
            assert (await web.get(origin.url())).headers["vary"] == "a, b"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_an_empty_body_may_have_an_encoding(method):
    answer = script(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n")
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(answer) as origin, open_client(origin) as web:
            assert (await web.request(method, origin.url())).body == b""


async def test_a_connection_that_takes_too_long_is_unreachable_before_the_deadline():
    class Deaf(Wires):
        async def connect_tcp(self, host, port, timeout=None, *rest, **options):
            try:
                with anyio.fail_after(timeout):
                    await anyio.sleep_forever()
            except TimeoutError as exc:
                raise httpcore2.ConnectTimeout(exc) from exc

    with anyio.fail_after(PATIENCE_S):
        async with open_wired_client(Deaf(9), Names([PUBLIC]), connect_s=0.05, retries=0) as web:
            with pytest.raises(Unreachable, match="^no connection to deaf.example: it took too long$") as raised:
                await web.get("http://deaf.example/")
            assert not raised.value.sent


async def test_a_request_cancelled_during_the_handshake_leaves_no_socket(tmp_path):
    made = make_certificate(tmp_path, "shop.example")
    accepted, never = anyio.Event(), anyio.Event()

    async def says_nothing(stream):
        async with stream:
            accepted.set()
            await never.wait()

    with anyio.fail_after(PATIENCE_S):
        async with listening(says_nothing) as port:
            async with open_wired_client(Wires(port), Names([PUBLIC]), context=made.client) as web:
                before = open_sockets()
                async with anyio.create_task_group() as asking:
                    asking.start_soon(web.get, "https://shop.example/")
                    await accepted.wait()
                    await anyio.wait_all_tasks_blocked()
                    assert len(open_sockets() - before) == 2
                    asking.cancel_scope.cancel()
                assert len(open_sockets() - before) == 1  # the origin's
                assert web.statistics().connections_open == 0


async def test_a_request_cancelled_during_the_handshake_costs_those_beside_it_nothing(tmp_path):
    made, first = make_certificate(tmp_path, "shop.example"), anyio.Event()
    origin = Origin(script(http(body=b"safe")))

    async def stalls_once(stream):
        async with stream:
            if not first.is_set():
                first.set()
                await anyio.sleep_forever()
            await origin.serve(await TLSStream.wrap(stream, ssl_context=made.server, standard_compatible=False))

    with anyio.fail_after(PATIENCE_S):
        async with listening(stalls_once) as port:
            before = open_sockets()
            async with open_wired_client(Wires(port), Names([PUBLIC]), context=made.client) as web:
                async with anyio.create_task_group() as doomed:
                    doomed.start_soon(web.get, "https://shop.example/")
                    await first.wait()
                    assert (await web.get("https://shop.example/")).body == b"safe"
                    doomed.cancel_scope.cancel()
                assert web.statistics().connections_open == 1
            assert len(open_sockets() - before) <= 2  # the origin's


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(http(body=b"direct"))) as origin, open_client(origin) as web:
            assert (await web.get(origin.url())).body == b"direct"


async def test_a_cancelled_request_leaves_no_connection_and_no_place_taken():
    never = anyio.Event()

    async def answer(asked: Asked) -> bytes:
        if asked.target == "/hangs":
            await never.wait()
        return http()

    with anyio.fail_after(PATIENCE_S):
        async with open_origin(answer) as origin, open_client(origin, per_host=1) as web:
            async with anyio.create_task_group() as asking:
                asking.start_soon(web.get, origin.url("/hangs"))
                while not origin.asked:
                    await anyio.wait_all_tasks_blocked()
                asking.cancel_scope.cancel()
            assert (web.statistics().in_flight, web.statistics().hosts, web.statistics().connections_open) == (0, 0, 0)
            assert (await web.get(origin.url())).status == 200
