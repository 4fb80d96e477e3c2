"""Nobody gets into the private network: not by spelling, not by DNS, not by a redirect. Keys stay with their host."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Any

import anyio
import httpcore2
import pytest
from pydantic import ValidationError
from toolhub_servers.web.errors import Forbidden, Unreachable
from toolhub_servers.web.guard import Guard, GuardedBackend
from toolhub_servers.web.request import authority_of
from toolhub_servers.web.settings import WebSettings
from web_stage import (
    PATIENCE_S,
    PUBLIC,
    Asked,
    Names,
    Wires,
    http,
    make_certificate,
    open_client,
    open_origin,
    open_wired_client,
    script,
)

pytestmark = pytest.mark.anyio


def moved(to: str, status: int = 302, **headers: str) -> bytes:
    return http(status, b"moved", Location=to, **headers)


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "LOCALHOST.",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "127.1",
        "0177.0.0.1",
        "0.0.0.0",
        "10.1.2.3",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:a9fe:a9fe]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "[fd00::1]",
        "[fe80::1]",
        "１２７.0.0.1",
        "127。0。0。1",
        "%31%32%37.0.0.1",
        "user:password@127.0.0.1",
    ],
)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_private_address_is_refused_however_it_is_spelt(host):
    with anyio.fail_after(PATIENCE_S):
        async with open_client(retries=0) as web:
            with pytest.raises(Forbidden) as refused:
                await web.get(f"http://{host}/")
            assert "password" not in str(refused.value)
            assert (web.statistics().connections_opened, web.statistics().refused) == (0, 1)


async def test_a_name_that_leads_into_the_private_network_is_refused():
    wires, names = Wires(9), Names(["10.0.0.1"])
    with anyio.fail_after(PATIENCE_S):
        async with open_wired_client(wires, names) as web:
            with pytest.raises(Forbidden, match=r"^rebind.example:80 leads to 10.0.0.1, which is not public"):
                await web.get("http://rebind.example/")
    assert wires.connected == []


async def test_of_mixed_addresses_only_the_public_ones_are_connected_to():
    names = Names(["127.0.0.1", "10.0.0.1", PUBLIC, "::1"])
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(http())) as origin:
            wires = Wires(origin.port)
            async with open_wired_client(wires, names) as web:
                await web.get("http://mixed.example/")
    assert wires.connected == [(PUBLIC, 80)]


@pytest.mark.parametrize("addresses", [[PUBLIC, "10.0.0.1"], ["::1", PUBLIC], ["192.168.0.1"]])
async def test_of_mixed_addresses_somebody_else_might_take_the_private_one(addresses):
    with pytest.raises(Forbidden, match=r"^mixed.example:443 leads to .*, which is not public; web.allow_private may"):
        await Guard(resolve=Names(addresses)).check_all("mixed.example", 443)
    await Guard(["mixed.example:443"], resolve=Names(addresses)).check_all("mixed.example", 443)
    await Guard(resolve=Names([PUBLIC])).check_all("mixed.example", 443)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://example.org/v1", "example.org:443"),
        ("HTTP://Example.org", "example.org:80"),
        ("http://user:word@example.org:8000/?q", "example.org:8000"),
        ("http://[::1]/", "[::1]:80"),
    ],
)
def test_the_place_of_a_url_is_what_allow_private_takes(url, place):
    assert authority_of(url) == place
    assert WebSettings(allow_private=[authority_of(url)]).allow_private == [place]


@pytest.mark.parametrize("url", ["example.org", "ftp://example.org", "http://", "http://a:b", ""])
def test_what_is_no_url_of_the_web_has_no_place(url):
    with pytest.raises(Forbidden):
        authority_of(url)


async def test_the_address_that_was_checked_is_the_one_that_is_connected_to():
    """A name server that gives a public address to the check and a private one to the connection gains nothing."""
    names = Names([PUBLIC], ["127.0.0.1"])
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(http(Connection="close"))) as origin:
            wires = Wires(origin.port)
            async with open_wired_client(wires, names) as web:
                await web.get("http://rebind.example/")
                assert (wires.connected, names.looked_up) == ([(PUBLIC, 80)], ["rebind.example"])
                with pytest.raises(Forbidden):
                    await web.get("http://rebind.example/")
            assert wires.connected == [(PUBLIC, 80)]


async def test_the_next_address_is_tried_when_one_does_not_answer():
    class Refusing(Wires):
        async def connect_tcp(self, host, port, *rest, **options):
            if host == PUBLIC:
                raise httpcore2.ConnectError("refused")
            return await super().connect_tcp(host, port, *rest, **options)

    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(http())) as origin:
            wires = Refusing(origin.port)
            async with open_wired_client(wires, Names([PUBLIC, "1.1.1.1"])) as web:
                assert (await web.get("http://two.example/")).status == 200
    assert wires.connected == [("1.1.1.1", 80)]


async def test_what_is_allowed_may_be_private_and_nothing_beside_it():
    guard = Guard(["127.0.0.1:8000", "*.intranet.example"], resolve=Names(["10.0.0.1"]))
    assert [str(address) for address in await guard.addresses("127.0.0.1", 8000)] == ["127.0.0.1"]
    assert [str(address) for address in await guard.addresses("wiki.intranet.example", 443)] == ["10.0.0.1"]
    for host, port in [("127.0.0.1", 8001), ("127.0.0.2", 8000), ("intranet.example", 443), ("localhost", 8000)]:
        with pytest.raises(Forbidden):
            await guard.addresses(host, port)


def test_an_allowed_host_that_is_none_is_an_error_of_the_settings():
    with pytest.raises(ValidationError, match="allow_private"):
        WebSettings(allow_private=["http://intranet.example/"])


async def test_there_is_no_way_to_a_unix_socket():
    with pytest.raises(Forbidden):
        await GuardedBackend(Guard()).connect_unix_socket("/run/docker.sock")
    async with open_client() as web:
        with pytest.raises(Forbidden):
            await web.get("http+unix://%2Frun%2Fdocker.sock/")


async def test_a_name_that_does_not_exist_is_asked_for_once():
    async def nobody(host: str, port: int) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with anyio.fail_after(PATIENCE_S):
        async with open_wired_client(Wires(9), nobody) as web:
            with pytest.raises(Unreachable, match="^no connection to nowhere.example: Name or service not known$"):
                await web.get("http://nowhere.example/")
            assert web.statistics().retries == 0


# --- TLS --------------------------------------------------------------------------------------------------------------


async def test_tls_verifies_the_name_although_the_address_is_connected_to(tmp_path):
    made = make_certificate(tmp_path, "shop.example")
    asked_names = []
    made.server.sni_callback = lambda stream, name, context: asked_names.append(name)
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(http(body=b"safe")), tls=made.server) as origin:
            wires = Wires(origin.port)
            async with open_wired_client(wires, Names([PUBLIC]), context=made.client) as web:
                assert (await web.get("https://shop.example/")).body == b"safe"
                assert (wires.connected, asked_names) == ([(PUBLIC, 443)], ["shop.example"])
                assert origin.asked[0].headers["host"] == "shop.example"


async def test_a_certificate_of_another_name_is_an_error_and_nothing_is_sent(tmp_path):
    made = make_certificate(tmp_path, "shop.example")
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(http()), tls=made.server) as origin:
            wires = Wires(origin.port)
            async with open_wired_client(wires, Names([PUBLIC]), context=made.client) as web:
                with pytest.raises(Unreachable, match="(?i)certificate") as refused:
                    await web.get("https://bank.example/")
                assert not refused.value.sent and web.statistics().retries == 0
            assert origin.asked == []


# --- redirects --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "to", ["http://127.0.0.1:{other}/", "http://169.254.169.254/latest/meta-data/", "//[::1]/", "file:///etc/passwd"]
)
async def test_a_redirect_into_the_private_network_is_refused(to):
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(http(body=b"secret"))) as private:
            async with open_origin(script(moved(to.format(other=private.port)))) as origin, open_client(origin) as web:
                with pytest.raises(Forbidden):
                    await web.get(origin.url())
            assert private.asked == []


async def test_a_redirect_is_followed_and_the_reply_names_where_it_ended():
    answers = script(moved("/b?x=1"), http(body=b"here"))
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(answers) as origin, open_client(origin) as web:
            reply = await web.get(origin.url("/a#part"), headers={"X-Key": "k"})
            assert (reply.url, reply.body) == (origin.url("/b?x=1#part"), b"here")
            assert origin.asked[1].headers["x-key"] == "k"
            assert (origin.connections, web.statistics().redirects) == (1, 1)


async def test_nobody_looks_into_the_body_of_a_redirect():
    answers = script(moved("/b", Content_Encoding="br"), http(body=b"here"))
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(answers) as origin, open_client(origin) as web:
            assert (await web.get(origin.url())).body == b"here"


async def test_keys_and_cookies_stay_with_their_host():
    secrets = {"Authorization": "Bearer s3", "X-API-KEY": "s3", "Cookie": "id=s3", "Accept-Language": "de"}
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(http())) as other:
            async with open_origin(script(moved(other.url(), Set_Cookie="sid=s3"))) as origin:
                async with open_client(origin, other) as web:
                    await web.get(origin.url().replace("//", "//user:s3@"), headers=secrets)
    assert "s3" in origin.asked[0].headers["x-api-key"]
    told = other.asked[0].headers
    assert told["accept-language"] == "de"
    assert not {"authorization", "x-api-key"} & set(told)
    # Cookies are per host name, whatever the port (RFC 6265 section 8.5); what the caller gave is not passed on.
    assert told.get("cookie", "") in ("", "sid=s3")


async def test_a_password_in_the_address_goes_out_as_a_header_and_not_into_the_reply():
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(http())) as origin, open_client(origin) as web:
            reply = await web.get(f"http://user:p%40ss@127.0.0.1:{origin.port}/")
            assert origin.asked[0].headers["authorization"] == "Basic dXNlcjpwQHNz"
            assert reply.url == origin.url()


async def test_a_cookie_set_on_the_way_is_sent_on_and_forgotten_after_the_request():
    async def answer(asked: Asked) -> bytes:
        if "consent=yes" in asked.headers.get("cookie", ""):
            return http(body=b"in")
        return moved("/", Set_Cookie="consent=yes; Path=/")

    with anyio.fail_after(PATIENCE_S):
        async with open_origin(answer) as origin, open_client(origin) as web:
            assert (await web.get(origin.url())).body == b"in"
            await web.get(origin.url())
            assert ["cookie" in asked.headers for asked in origin.asked] == [False, True, False, True]


async def test_a_redirect_loop_ends_in_words():
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(moved("/"))) as origin, open_client(origin, redirects=3) as web:
            with pytest.raises(Unreachable, match=f"^more than 3 redirects, the last to 127.0.0.1:{origin.port}$"):
                await web.get(origin.url())
            assert len(origin.asked) == 4


@pytest.mark.parametrize(
    ("status", "method", "body"), [(301, "GET", b""), (302, "GET", b""), (303, "GET", b""), (307, "POST", b"{}")]
)
async def test_a_post_becomes_a_get_where_the_status_says_so(status, method, body):
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(moved("/b", status), http())) as origin, open_client(origin) as web:
            await web.request("POST", origin.url(), json={})
            assert (origin.asked[1].method, origin.asked[1].body) == (method, body)
            assert ("content-type" in origin.asked[1].headers) == (method == "POST")


async def test_a_body_is_not_carried_to_another_host():
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(http())) as other:
            async with open_origin(script(moved(other.url(), 308))) as origin, open_client(origin, other) as web:
                with pytest.raises(Unreachable, match="it is not sent to another host"):
                    await web.request("POST", origin.url(), json={"key": "s3"}, is_safe=True)
            assert other.asked == [] and len(origin.asked) == 1


# --- this machine and its platform ------------------------------------------------------------------------------------


async def test_a_public_address_of_this_machine_is_refused_unless_it_is_allowed():
    own, other = ip_address("93.184.216.34"), ip_address("1.1.1.1")

    async def resolve(host, port):
        return [own, other] if host == "both.example" else [own]

    guard = Guard(resolve=resolve, is_own=lambda address: address == own)
    with pytest.raises(Forbidden, match=r"93\.184\.216\.34"):
        await guard.addresses("own.example", 80)
    with pytest.raises(Forbidden):
        await guard.addresses(str(own), 80)
    with pytest.raises(Forbidden):
        await guard.check_all("both.example", 80)
    assert await guard.addresses("both.example", 80) == [other]
    allowing = Guard(["own.example:80"], resolve=resolve, is_own=lambda address: address == own)
    assert await allowing.addresses("own.example", 80) == [own]


@pytest.mark.parametrize("host", ["168.63.129.16", "::ffff:168.63.129.16"])
async def test_the_services_of_the_cloud_platform_are_refused(host):
    with pytest.raises(Forbidden, match="is not public"):
        await Guard().addresses(host, 80)
