"""The machine that the proxy runs on: its own addresses, and the ports at which this process listens.

The proxy connects from the hub's process, so services of this machine treat it as a local program. A public name that
leads back to this machine would reach them, and a listed local address could reach the hub itself.
"""

from __future__ import annotations

import errno
import os
import socket
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from toolhub_sandbox.proxy.rules import IPAddress

# One line for each socket of the network namespace: proc_net_tcp.rst in the kernel's documentation.
_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_LISTENING = "0A"
# TEST-NET-1 and the prefix for documentation (RFC 5737, RFC 3849): no machine has these.
_NOBODYS: dict[int, IPAddress] = {4: IPv4Address("192.0.2.1"), 6: IPv6Address("2001:db8::1")}


def is_own_address(address: IPAddress) -> bool:
    """Whether connecting to this address leads to this machine. True if that is unknown."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback or address.is_unspecified:
        return True
    if not _can_bind(address):
        return False
    # With net.ipv4.ip_nonlocal_bind every address can be bound; then only the primary ones can be found.
    return _is_source_for(address) if _can_bind(_NOBODYS[address.version]) else True


def _can_bind(address: IPAddress) -> bool:
    with _udp(address) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError as exc:
            return exc.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True


def _is_source_for(address: IPAddress) -> bool:
    """Whether this machine would use the address itself as its source for it. Nothing is sent."""
    with _udp(address) as probe:
        try:
            probe.connect((str(address), 9))
            return bool(probe.getsockname()[0] == str(address))
        except OSError:
            return False


def _udp(address: IPAddress) -> socket.socket:
    return socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM)


def listening_ports() -> frozenset[int]:
    """The TCP ports at which this process listens, at any address of its network namespace; none outside Linux."""
    own = _own_sockets()
    found: set[int] = set()
    for table in _TABLES:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            if state == _LISTENING and inode in own:
                found.add(int(local.rpartition(":")[2], 16))
    return frozenset(found)


def _own_sockets() -> set[str]:
    """The inodes of this process's sockets."""
    found: set[str] = set()
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return found
    for number in numbers:
        try:
            kind, _, rest = os.readlink(f"/proc/self/fd/{number}").partition(":[")
        except OSError:
            continue  # it has been closed, such as the one that listed them
        if kind == "socket":
            found.add(rest.removesuffix("]"))
    return found
