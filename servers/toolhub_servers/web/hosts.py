"""Politeness: how many requests a host gets at once, how fast, and when none at all, over all tasks.

Requests take their turn in the order in which they asked. A host that is not in use is forgotten.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from toolhub_servers.web.errors import BadStatus

# A host that asks for more is asked again after this time; a mistaken header would otherwise close it for everybody.
_LONGEST_QUIET_S = 300.0
# How often hosts that nobody uses, but that were not to be forgotten at once, are looked at.
_SWEEP_S = 30.0


class _Host:
    """starts: held by the one that starts next. quiet_until: told by Retry-After with quiet_status."""

    def __init__(self, per_host: int) -> None:
        self.places = anyio.CapacityLimiter(per_host)
        self.starts = anyio.Lock()
        self.users = 0
        self.next_start = -math.inf
        self.quiet_until = -math.inf
        self.quiet_status = 0

    def may_start_at(self) -> float:
        return max(self.next_start, self.quiet_until)


class Hosts:
    """All hosts of a pool. per_host: requests at a time. pause_s: between the starts of two."""

    def __init__(self, per_host: int, pause_s: float) -> None:
        self._per_host = per_host
        self._pause_s = pause_s
        self._hosts: dict[str, _Host] = {}
        self._swept_at = -math.inf

    def __repr__(self) -> str:
        return f"<Hosts {len(self._hosts)} known>"

    def __len__(self) -> int:
        return len(self._hosts)

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[None]:
        """Wait for a turn and keep it as long as the block.

        Raises BadStatus at once if the host has asked for quiet beyond the caller's deadline.
        """
        self._sweep()
        host = self._hosts.setdefault(name, _Host(self._per_host))
        host.users += 1
        try:
            _refuse_what_cannot_start(name, host)
            async with host.places:
                async with host.starts:
                    await self._wait_start(name, host)
                    host.next_start = anyio.current_time() + self._pause_s
                yield
        finally:
            host.users -= 1
            if not host.users and host.may_start_at() <= anyio.current_time():
                self._hosts.pop(name, None)

    def quiet(self, name: str, seconds: float, status: int) -> None:
        """Start no request to this host for so long: it answered `status` and asked for that."""
        host = self._hosts.get(name)
        if host is not None:  # whoever tells it is in its turn
            host.quiet_until = max(host.quiet_until, anyio.current_time() + min(seconds, _LONGEST_QUIET_S))
            host.quiet_status = status

    async def _wait_start(self, name: str, host: _Host) -> None:
        while (rest := host.may_start_at() - anyio.current_time()) > 0:
            _refuse_what_cannot_start(name, host)
            await anyio.sleep(rest)

    def _sweep(self) -> None:
        now = anyio.current_time()
        if now < self._swept_at + _SWEEP_S:
            return
        self._swept_at = now
        for name in [name for name, host in self._hosts.items() if not host.users and host.may_start_at() <= now]:
            del self._hosts[name]


def _refuse_what_cannot_start(name: str, host: _Host) -> None:
    rest = host.quiet_until - anyio.current_time()
    if rest > 0 and host.quiet_until >= anyio.current_effective_deadline():
        raise BadStatus(
            f"{name} answered {host.quiet_status} to others and asked for {rest:.0f} s of quiet, more than is left",
            status=host.quiet_status,
            retry_after=rest,
        )
