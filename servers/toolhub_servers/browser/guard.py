"""Limit pages to public addresses and to those private ones that are allowed.

Chromium reaches the network only through a proxy in the hub's process. The proxy resolves names, and checks the very
address that it connects to. So redirects, images, frames and WebSockets are checked like navigations. Each context has
a proxy of its own: Chromium opens up to 32 connections to a proxy per context, so no task waits for connections of
another.
"""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import anyio
from toolhub_sandbox.proxy.rules import AllowRules, IPAddress, Rule, Target, is_public, parse_authority
from toolhub_sandbox.proxy.server import run_proxy

from toolhub_servers.browser.errors import Refused

KEY = "the browser's option allow_private"
_DEFAULT_PORTS = {"http": 80, "https": 443}
# A page can ask for any number of hosts.
_REFUSALS_KEPT = 20
# Browsers ignore these characters anywhere in a URL.
_IGNORED = re.compile(r"[\t\r\n]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+(?:/|$)")


@dataclass(frozen=True, slots=True)
class PublicRules(AllowRules):
    """Admits public addresses, and the addresses that `rules` lead to.

    refused: targets without an admitted address since the last `take_refused()`. reached: targets with one.
    """

    refused: dict[Target, None] = field(default_factory=dict, compare=False)
    reached: set[Target] = field(default_factory=set, compare=False)

    @classmethod
    def allowing(cls, private: Sequence[str]) -> PublicRules:
        """Parse the list of private hosts. Raises ValueError, which names the entry that is not a host."""
        return cls(tuple(_read(text) for text in private), KEY)

    def admits(self, target: Target) -> bool:
        """Whether to look the target up. A name may lead anywhere, so its addresses are checked."""
        return target.address is None or self.admits_address(target, target.address)

    def admits_address(self, target: Target, address: IPAddress) -> bool:
        admitted = is_public(address) or any(rule.admits(target) for rule in self.rules)
        if admitted:
            self.refused.pop(target, None)
            self.reached.add(target)
        elif target not in self.reached and len(self.refused) < _REFUSALS_KEPT:
            self.refused[target] = None
        return admitted

    def means_local(self, target: Target) -> bool:
        return any(rule.admits(target) for rule in self.rules)

    def take_refused(self) -> list[Target]:
        """Return the targets that were refused since the last call."""
        refused = list(self.refused)
        self.refused.clear()
        self.reached.clear()
        return refused


def _read(text: str) -> Rule:
    try:
        return Rule.of(text)
    except ValueError as exc:
        raise ValueError(f"allow_private: {text!r}: {exc}; write 127.0.0.1:8000 or *.intranet.example") from exc


def target_of(url: str) -> Target | None:
    """Return the host and port of an http(s) address; None if it has none."""
    try:
        parts = urlsplit(url)
        return parse_authority(parts.netloc.rpartition("@")[2], default_port=_DEFAULT_PORTS[parts.scheme])
    except (ValueError, KeyError):
        return None


def checked_url(url: str, rules: AllowRules) -> str:
    """Return the address to navigate to, with a scheme. Raises Refused if it can be refused without a lookup."""
    url = _IGNORED.sub("", url).strip()
    if url == "about:blank":
        return url
    if not _SCHEME.match(url) or _HOST_AND_PORT.match(url):
        url = f"https://{url}"
    scheme = urlsplit(url).scheme.lower()
    if scheme not in _DEFAULT_PORTS:
        raise Refused(f"{url[:200]!r} was not opened: only http and https addresses are")
    target = target_of(url)
    if target is not None and target.address is not None and not rules.admits(target):
        raise refusal(target)
    return url


def refusal(target: Target) -> Refused:
    return Refused(f"{target} was not reached: it is not a public address; {KEY} can list it")


@asynccontextmanager
async def open_guard(rules: AllowRules) -> AsyncIterator[str]:
    """Run a proxy with these rules on the loopback interface during the block; yield its address."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        port = listener.getsockname()[1]
        async with anyio.create_task_group() as tasks:
            # The operator chose the hosts of `allow_private` for browsers, whichever machine they are on.
            tasks.start_soon(lambda: run_proxy(listener, rules, hub_ports=frozenset))
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                tasks.cancel_scope.cancel()
