"""Which hosts a sandbox may reach. Pure rules without sockets and lookups.

There are two questions. `admits(target)`: is this name and port on the list? `admits_address(...)`: may the address
that the name led to be connected to? A listed name leads only to public addresses, whatever its DNS says: code must not
reach the hub's network through a name that its author controls. To allow a local service, list its IP address or
`localhost`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from toolhub_sandbox.errors import SandboxUnavailable

IPAddress = IPv4Address | IPv6Address

WEB_PORTS = frozenset({80, 443})
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# Resolvers also read `2130706433`, `0x7f.1` and `127.1` as addresses. A name never ends like this.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LONGEST_NAME = 253
_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are the IPv4 address that is really reached
_ASSIGNED = IPv6Network("2000::/3")  # RFC 4291: all global unicast addresses
_AZURE = IPv4Address("168.63.129.16")  # public by its number, but the platform's own services of the virtual machine
_6TO4 = IPv6Network("2002::/16")  # RFC 7526: deprecated, and a way to name any IPv4 address


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a request. host: lower case, without a trailing dot; an IP address without brackets."""

    host: str
    port: int

    @property
    def address(self) -> IPAddress | None:
        """The address, if the host is one."""
        return _as_address(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_authority(text: str, *, default_port: int | None = None) -> Target:
    """Parse `host:port`. Raises ValueError, whose text never repeats a possible secret (user:password@host)."""
    host, port = _split(text)
    if port is None and default_port is None:
        raise ValueError("the port is missing")
    return Target(host, port if port is not None else default_port or 0)


def _split(text: str) -> tuple[str, int | None]:
    if "@" in text:
        raise ValueError("user and password do not belong in a host")
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        raise ValueError("that is not host:port (a name outside ASCII is written in its xn-- form)")
    port = int(found[2]) if found[2] else None
    if port is not None and not 0 < port < 1 << 16:
        raise ValueError("the port is not between 1 and 65535")
    return _normal_host(found[1]), port


def _normal_host(text: str) -> str:
    if text.startswith("["):
        return str(IPv6Address(text[1:-1]))
    host = text.lower().removesuffix(".")
    labels = host.split(".")
    if len(host) > _LONGEST_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("that is not the name of a host")
    return str(IPv4Address(host)) if _NUMBER.fullmatch(labels[-1]) else host


def _as_address(host: str) -> IPAddress | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_public(address: IPAddress) -> bool:
    """Whether an address belongs to the public internet. An IPv4 address inside an IPv6 address decides for it."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _NAT64:
            return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
        if address not in _ASSIGNED or address in _6TO4:
            return False
    local = address.is_private or address.is_loopback or address.is_link_local or address.is_unspecified
    return address.is_global and address != _AZURE and not (local or address.is_multicast or address.is_reserved)


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the list. is_below: matches all names below the host, at any depth, and not the host itself."""

    host: str
    ports: frozenset[int] = WEB_PORTS
    is_below: bool = False

    @classmethod
    def of(cls, text: str) -> Rule:
        """Parse `example.org`, `*.example.org` or either with a `:port`. Raises ValueError."""
        is_below = text.startswith("*.")
        host, port = _split(text.removeprefix("*."))
        if is_below and _as_address(host) is not None:
            raise ValueError("there are no names below an IP address")
        return cls(host, WEB_PORTS if port is None else frozenset({port}), is_below)

    def admits(self, target: Target) -> bool:
        is_named = target.host.endswith(f".{self.host}") if self.is_below else target.host == self.host
        return is_named and target.port in self.ports


@dataclass(frozen=True, slots=True)
class AllowRules:
    """The list of a profile. key: its place in the config, for messages."""

    rules: tuple[Rule, ...]
    key: str

    @classmethod
    def of(cls, allow: Sequence[str], *, profile: str = "<name>") -> AllowRules:
        """Parse the list of a profile. Raises SandboxUnavailable, which names the entry that is not a host."""
        key = f"sandbox.profiles.{profile}.network.allow"
        return cls(tuple(_read(text, key) for text in allow), key)

    def admits(self, target: Target) -> bool:
        return any(rule.admits(target) for rule in self.rules)

    def admits_address(self, target: Target, address: IPAddress) -> bool:
        """Whether an admitted target may be reached at this address, which a lookup of its host gave."""
        if target.address is not None:
            return address == target.address
        return address.is_loopback if target.host == "localhost" else is_public(address)

    def means_local(self, target: Target) -> bool:
        """Whether an admitted target may be a service of this machine: the list has its address, or `localhost`."""
        return target.address is not None or target.host == "localhost"


def _read(text: str, key: str) -> Rule:
    try:
        return Rule.of(text)
    except ValueError as exc:
        raise SandboxUnavailable(
            f"{key}: {text!r}: {exc}; write example.org, *.example.org or example.org:8443"
        ) from exc
