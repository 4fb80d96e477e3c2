"""Which hosts and addresses the sandbox proxy admits, and which heads it takes: no sockets."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolhub_sandbox.errors import SandboxUnavailable
from toolhub_sandbox.proxy.request import UNBOUNDED, BadRequest, check_bytes, parse_request
from toolhub_sandbox.proxy.rules import AllowRules, Target, is_public, parse_authority

pytestmark = pytest.mark.quick

label = st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z]", fullmatch=True)
name = st.lists(label, min_size=1, max_size=4).map(".".join)
port = st.integers(1, 65535)
private = st.sampled_from(
    ["0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"]
    + ["192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"]
).flatmap(lambda network: st.ip_addresses(network=IPv4Network(network)))


def admits(allow: str, authority: str) -> bool:
    return AllowRules.of([allow]).admits(parse_authority(authority))


@given(name, port)
def test_a_name_without_a_port_means_the_ports_of_the_web(host, port):
    assert admits(host, f"{host}:{port}") == (port in {80, 443})


@given(name, port, port)
def test_a_name_with_a_port_means_that_port_alone(host, port, asked):
    assert admits(f"{host}:{port}", f"{host}:{asked}") == (port == asked)


@given(name, st.lists(label, max_size=3))
def test_a_wildcard_means_every_depth_below_and_not_the_apex(host, below):
    assert admits(f"*.{host}", ".".join([*below, host]) + ":443") == bool(below)


@pytest.mark.parametrize("asked", ["notexample.org", "example.org.evil.net", "example.organic", "-.example.org.uk"])
def test_a_name_that_only_looks_similar_is_not_admitted(asked):
    assert not AllowRules.of(["example.org", "*.example.org"]).admits(Target(asked, 443))


@given(name, st.randoms(use_true_random=False))
def test_case_and_a_trailing_dot_make_no_difference(host, random):
    mixed = "".join(random.choice([letter.upper(), letter]) for letter in host)
    assert admits(mixed, f"{host}.:80")
    assert admits(f"{host}.", f"{mixed}:80")


@pytest.mark.parametrize(
    "text",
    ["user@example.org:80", "user:pw@example.org:80", "example.org:0", "example.org:65536", "example.org:", ":80"]
    + ["example.org", "a..b:80", ".example.org:80", "example.org..:80", "a b:80", "a\x00b:80", "a%2eb:80", "-a.b:80"]
    + ["exämple.org:80", "\u212aelvin.org:80", "example。org:80", "example.org:８０", f"{'a' * 64}.org:80"]
    + ["2130706433:80", "0x7f000001:80", "127.1:80", "0177.0.0.1:80", "127.0.0.0x1:80", "1.2.3.256:80"]
    + ["[::1:80", "[fe80::1%eth0]:80", "[127.0.0.1]:80", "::1:80", "example.org\\@evil.net:80"],
)
def test_what_two_programs_could_read_differently_is_no_target(text):
    with pytest.raises(ValueError, match=r"."):
        parse_authority(text)


def test_a_refusal_never_repeats_a_password():
    with pytest.raises(ValueError, match="user and password") as caught:
        parse_authority("me:hunter2@example.org:80")
    assert "hunter2" not in str(caught.value)


def test_one_address_has_one_spelling():
    assert parse_authority("[2001:DB8:0:0::1]:443") == Target("2001:db8::1", 443)
    assert parse_authority("127.0.0.1.:80") == Target("127.0.0.1", 80)
    assert str(Target("2001:db8::1", 443)) == "[2001:db8::1]:443"


@pytest.mark.parametrize(
    "text", ["", "*", "*.", "http://example.org", "example.org/x", "*.*.org", "a.*.org", "b\u00fc.de"]
)
def test_an_entry_that_is_no_host_is_refused_by_name(text):
    with pytest.raises(SandboxUnavailable, match="sandbox.profiles.web.network.allow") as caught:
        AllowRules.of(["example.org", text], profile="web")
    assert repr(text) in str(caught.value)


def test_there_is_nothing_below_an_address():
    with pytest.raises(SandboxUnavailable, match="below an IP address"):
        AllowRules.of(["*.127.0.0.1"])


@given(private)
def test_no_spelling_of_a_private_address_is_public(address):
    assert not is_public(address)
    assert not is_public(IPv6Address(f"::ffff:{address}"))
    assert not is_public(IPv6Address(f"64:ff9b::{address}"))
    assert not is_public(IPv6Address((0x2002 << 112) | (int(address) << 80)))


@pytest.mark.parametrize("address", ["::", "::1", "fe80::1", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1"])
def test_local_ipv6_addresses_are_not_public(address):
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["168.63.129.16", "::ffff:168.63.129.16", "64:ff9b::a83f:8110"])
def test_the_services_of_a_cloud_platform_are_not_public(address):
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are_public_through_a_translator_too(address):
    assert is_public(ip_address(address))


@given(private)
def test_a_listed_name_never_leads_to_a_private_address(address):
    rules = AllowRules.of(["example.org", "metadata.internal"])
    assert not rules.admits_address(Target("example.org", 80), address)
    assert rules.admits_address(Target("example.org", 80), IPv4Address("8.8.8.8"))


@given(private)
def test_a_listed_address_leads_to_itself_alone(address):
    rules = AllowRules.of([str(address)])
    target = parse_authority(f"{address}:80")
    assert rules.admits(target)
    assert rules.admits_address(target, address)
    assert not rules.admits_address(target, IPv4Address("8.8.8.8"))
    assert not rules.admits(parse_authority(f"[::ffff:{address}]:80"))


def test_localhost_leads_to_this_machine_alone():
    rules, target = AllowRules.of(["localhost"]), Target("localhost", 80)
    assert rules.admits_address(target, IPv6Address("::1"))
    assert not rules.admits_address(target, IPv4Address("192.168.0.1"))
    assert not rules.admits_address(target, IPv4Address("8.8.8.8"))
    assert not AllowRules.of(["*.localhost"]).admits_address(Target("a.localhost", 80), IPv4Address("127.0.0.1"))


def test_only_an_address_or_localhost_may_mean_this_machine():
    rules = AllowRules.of(["example.org", "10.0.0.1:8080", "localhost:8080", "*.localhost"])
    assert rules.means_local(Target("10.0.0.1", 8080))
    assert rules.means_local(Target("localhost", 8080))
    assert not rules.means_local(Target("example.org", 80))
    assert not rules.means_local(Target("a.localhost", 80))


def test_a_plain_request_is_rewritten_for_the_host_that_is_checked():
    request = parse_request(
        b"GET HTTP://Example.org.:8080/a?b=c HTTP/1.1\r\nHost: evil.net\r\nProxy-Authorization: x\r\nX-Private: 1\r\n"
        b"Connection: keep-alive, X-Private\r\nProxy-Connection: keep-alive\r\nAccept:  */* \r\n\r\n"
    )
    assert request.target == Target("example.org", 8080)
    assert request.head == (
        b"GET /a?b=c HTTP/1.1\r\nHost: example.org:8080\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    )
    assert request.size_bytes == len(request.head)


@pytest.mark.parametrize(
    ("url", "path"), [("http://a.org", b"/"), ("http://a.org?q", b"/?q"), ("http://a.org//b", b"//b")]
)
def test_a_path_always_starts_with_a_slash(url, path):
    assert parse_request(f"GET {url} HTTP/1.0\r\n\r\n".encode()).head.startswith(b"GET " + path + b" HTTP/1.0\r\n")


@pytest.mark.parametrize(
    ("authority", "host"),
    [("a.org", b"a.org"), ("a.org:80", b"a.org"), ("a.org:8080", b"a.org:8080"), ("[::1]", b"[::1]")],
)
def test_the_usual_port_is_left_out_of_the_host(authority, host):
    head = parse_request(f"GET http://{authority}/ HTTP/1.1\r\n\r\n".encode()).head
    assert head.split(b"\r\n")[1] == b"Host: " + host


@pytest.mark.parametrize(
    ("field", "body_bytes"), [("Content-Length: 7", 7), ("Transfer-Encoding: chunked", UNBOUNDED), ("Accept: x", 0)]
)
def test_the_body_ends_where_its_length_says_and_connection_cannot_hide_the_length(field, body_bytes):
    head = f"POST http://a.org/ HTTP/1.1\r\n{field}\r\nConnection: content-length, transfer-encoding\r\n\r\n"
    request = parse_request(head.encode())
    assert request.size_bytes == len(request.head) + body_bytes
    assert field.encode() in request.head


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: a.org\r\n\r\n",
        b"GET https://a.org/ HTTP/1.1\r\n\r\n",
        b"GET http://a.org/#x HTTP/1.1\r\n\r\n",
        b"GET http://u:p@a.org/ HTTP/1.1\r\n\r\n",
        b"GET http://a.org\\@b.org/ HTTP/1.1\r\n\r\n",
        b"GET http:///x HTTP/1.1\r\n\r\n",
        b"GET  http://a.org/ HTTP/1.1\r\n\r\n",
        b"GET http://a.org/ HTTP/2\r\n\r\n",
        b"GET http://a.org/\r\n\r\n",
        b"\r\nGET http://a.org/ HTTP/1.1\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\r\n folded: x\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\r\nHost : a.org\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\r\nnocolon\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\nX: y\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\r\nX: \rSet: y\r\n\r\n",
        b"GET http://a.org/ HTTP/1.1\r\nX: \x00\r\n\r\n",
        b"POST http://a.org/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST http://a.org/ HTTP/1.1\r\nContent-Length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST http://a.org/ HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
        b"CONNECT a.org HTTP/1.1\r\n\r\n",
        b"CONNECT http://a.org:443 HTTP/1.1\r\n\r\n",
        b"CONNECT a.org:443/x HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_a_head_that_leaves_room_for_doubt_is_refused(head):
    with pytest.raises(BadRequest):
        parse_request(head)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_hostile_bytes_are_refused_as_such_or_read(line, field):
    for head in (line, b"GET http://a.org/" + line + b" HTTP/1.1\r\n" + field + b"\r\n\r\n"):
        try:
            request = parse_request(head)
        except BadRequest:
            continue
        assert request.target.host


field_name = st.sampled_from([b"Host", b"HOST", b"Proxy-X", b"Connection", b"Keep-Alive", b"X-A", b"Upgrade", b"TE"])


@given(st.lists(st.tuples(field_name, st.sampled_from([b"a", b"X-A", b"close, te", b"\xe9"]))))
def test_what_the_upstream_gets_is_one_head_with_one_host_and_one_connection(fields):
    lines = b"".join(b"%s: %s\r\n" % field for field in fields)
    head = parse_request(b"GET http://a.org/ HTTP/1.1\r\n" + lines + b"\r\n").head
    check_bytes(head)
    names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:-2]]
    assert head.index(b"\r\n\r\n") == len(head) - 4
    assert (names.count(b"host"), names.count(b"connection")) == (1, 1)
    assert not any(name.startswith((b"proxy-", b"keep-", b"upgrade")) for name in names)


@given(st.integers(0, 60))
def test_a_good_head_may_arrive_in_any_pieces(cut):
    check_bytes(b"GET http://a.org/ HTTP/1.1\r\nAccept: */*\r\nX: y\r\n\r\n"[:cut])
