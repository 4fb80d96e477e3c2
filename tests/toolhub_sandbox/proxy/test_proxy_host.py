"""A list of hosts never leads to the hub, and a name never to the machine that the proxy runs on."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import pytest
from toolhub_sandbox.proxy.machine import is_own_address, listening_ports

from tests.toolhub_sandbox.proxy.proxy_stage import ask, echo, expect, open_origin, open_proxy, open_tunnel, resolver

pytestmark = pytest.mark.anyio

PUBLIC = ip_address("8.8.8.8")


def own_address() -> str:
    """An address of this machine beyond loopback, if it has one: nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.2"
        return str(probe.getsockname()[0])


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::", "::1", "::ffff:127.0.0.1", own_address()]
)
def test_an_address_of_this_machine_is_known_as_its_own(address):
    assert is_own_address(ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "192.0.2.1", "::ffff:8.8.8.8", "2001:db8::1", "2606:4700::1111"])
def test_the_address_of_another_machine_is_not_its_own(address):
    assert not is_own_address(ip_address(address))


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_ports_at_which_this_process_listens_are_found(family, host):
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
        assert port in listening_ports()
    assert port not in listening_ports()


def test_a_port_at_which_another_process_listens_is_not_ours():
    with socket.socket() as bound:  # it does not listen
        bound.bind(("127.0.0.1", 0))
        assert bound.getsockname()[1] not in listening_ports()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "127.0.0.2", own_address()])
async def test_the_hub_cannot_be_reached_however_its_address_is_listed(host):
    """The hub is the process that the proxy runs in: this one."""
    with socket.create_server(("0.0.0.0", 0)) as hub:
        hub.setblocking(False)
        port = hub.getsockname()[1]
        async with open_proxy(f"{host}:{port}", hub_ports=listening_ports) as proxy:
            for request in (f"CONNECT {host}:{port} HTTP/1.1", f"GET http://{host}:{port}/v1/tasks HTTP/1.1"):
                answer = await ask(proxy.port, f"{request}\r\n\r\n".encode())
                assert answer.startswith(f"HTTP/1.1 403 {host}:{port} is the hub itself".encode())
        with pytest.raises(BlockingIOError):
            hub.accept()


async def test_a_local_service_of_another_process_is_reached_where_its_address_is_listed():
    async with open_origin(echo) as port, open_proxy(f"127.0.0.1:{port}", hub_ports=frozenset) as proxy:
        async with open_tunnel(proxy.port, f"127.0.0.1:{port}") as client:
            await client.send(b"hello")
            await expect(client, b"hello")


async def test_a_listed_name_that_leads_to_a_public_address_of_this_machine_is_refused():
    options = {"resolve": resolver([PUBLIC]), "is_own": lambda address: address == PUBLIC}
    async with open_proxy("example.org", **options) as proxy:
        answer = await ask(proxy.port, b"CONNECT example.org:443 HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403 example.org:443 is this machine; sandbox.profiles.web.network.allow")
    assert b"8.8.8.8" not in answer


async def test_one_address_of_this_machine_among_others_is_enough_to_refuse_a_name():
    options = {"resolve": resolver([ip_address("1.1.1.1"), PUBLIC]), "is_own": lambda address: address == PUBLIC}
    async with open_proxy("example.org", **options) as proxy:
        answer = await ask(proxy.port, b"CONNECT example.org:443 HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403 example.org:443 is this machine")
