"""Reading a hub's address."""

from __future__ import annotations

import pytest

from toolhub import ConfigError
from toolhub.client.address import DEFAULT_PORT, Address

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("url", ["unix:///run/hub.sock", "/run/hub.sock"])
def test_a_unix_socket_may_be_written_as_a_url_or_a_path(url: str) -> None:
    assert Address.parse(url) == Address(path="/run/hub.sock")
    assert str(Address.parse(url)) == "unix:///run/hub.sock"


def test_a_host_has_the_default_port_unless_it_says_another() -> None:
    assert Address.parse("http://hub.example") == Address(host="hub.example", port=DEFAULT_PORT)
    assert Address.parse("http://10.0.0.7:99/") == Address(host="10.0.0.7", port=99)


def test_an_ipv6_address_keeps_its_brackets() -> None:
    assert Address.parse("http://[::1]:99").authority == "[::1]:99"


@pytest.mark.parametrize("url", ["", "hub", "hub:80", "https://hub", "http://", "http://h/x", "unix://", "http://h:x"])
def test_anything_else_is_refused_with_the_forms_that_work(url: str) -> None:
    with pytest.raises(ConfigError, match="http://host:port, unix:///path"):
        Address.parse(url)


@pytest.mark.parametrize(
    ("url", "local"), [("/run/hub.sock", True), ("http://127.0.0.1", True), ("http://10.0.0.7", False)]
)
def test_only_a_socket_or_loopback_is_local(url: str, local: bool) -> None:
    assert Address.parse(url).is_local is local
