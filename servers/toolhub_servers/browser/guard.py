"""Where pages may go: every public address, and those private ones that are allowed.

Chromium reaches the network through a proxy in the hub's process, one for each context, and through nothing else: names
are resolved there, and the address that is judged is the address that is connected to. So a redirect, an image, a frame
or a WebSocket is judged as a navigation is. One proxy for each context because Chromium holds up to 32 connections to a
proxy for each context, and the proxy serves as many: no task waits for the connections of another.
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
# Browsers leave these out wherever they stand.
_IGNORED = re.compile(r"[\t\r\n]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+(?:/|$)")


@dataclass(frozen=True, slots=True)
class PublicRules(AllowRules):
    """Admits what is public, and `rules` whatever they lead to.

    refused: what had no address that is admitted, since the last `take_refused()`. reached: what had one.
    """

    refused: dict[Target, None] = field(default_factory=dict, compare=False)
    reached: set[Target] = field(default_factory=set, compare=False)

    @classmethod
    def allowing(cls, private: Sequence[str]) -> PublicRules:
        """Read the list of private hosts. Raises ValueError, naming the entry that is no host."""
        return cls(tuple(_read(text) for text in private), KEY)

    def admits(self, target: Target) -> bool:
        """Whether to look the target up; a name may lead anywhere, so it is judged by its addresses."""
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
        """Return what was refused since the last time."""
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
    """The host and port of an http(s) address; None where there is none that could be told."""
    try:
        parts = urlsplit(url)
        return parse_authority(parts.netloc.rpartition("@")[2], default_port=_DEFAULT_PORTS[parts.scheme])
    except (ValueError, KeyError):
        return None


def checked_url(url: str, rules: AllowRules) -> str:
    """Return the address to navigate to, with a scheme. Raises Refused for what cannot be reached by any lookup."""
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
    """Serve a proxy with these rules on the loopback interface and give its address."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        port = listener.getsockname()[1]
        async with anyio.create_task_group() as tasks:
            # What `allow_private` lists was chosen for browsers, wherever it runs.
            tasks.start_soon(lambda: run_proxy(listener, rules, hub_ports=frozenset))
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                tasks.cancel_scope.cancel()
