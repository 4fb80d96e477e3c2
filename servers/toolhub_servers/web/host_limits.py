"""Limits per host, over all tasks: how many requests at a time, how fast, and none while the host asks for a pause.

Requests get their rate slots in the order in which they asked. A speculative request never waits: it is refused where
it would, and a real request that finds no free place takes that of a speculative one. A host that is not in use is
forgotten.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

import anyio

from toolhub_servers.web.errors import BadStatus, Preempted

# A longer pause is cut to this, because a wrong header would otherwise block the host for all tasks.
_MAX_COOLDOWN_S = 300.0
# How often the hosts are searched for unused ones whose pause is over.
_SWEEP_S = 30.0


class SpeculativeRead:
    """What is read before any call wants it. Preempting it cancels `scope`; one that a call waits for is left alone."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.is_wanted = False

    def preempt(self) -> bool:
        """End it if no call wants it. Return whether it ends."""
        if not self.is_wanted:
            self.scope.cancel()
        return not self.is_wanted


speculative_read: ContextVar[SpeculativeRead | None] = ContextVar("toolhub_servers_speculative_read", default=None)
"""What the running code reads ahead; None for what a call waits for."""


class _HostState:
    """start_lock: held by the next request to start. cooldown_until: set by Retry-After, with cooldown_status."""

    def __init__(self, per_host: int) -> None:
        self.limiter = anyio.CapacityLimiter(per_host)
        self.start_lock = anyio.Lock()
        self.users = 0
        self.speculative: list[SpeculativeRead] = []
        self.next_start = -math.inf
        self.cooldown_until = -math.inf
        self.cooldown_status = 0

    def earliest_start(self) -> float:
        return max(self.next_start, self.cooldown_until)


class HostLimits:
    """All hosts of a pool. per_host: requests at a time. pause_s: between the starts of two requests."""

    def __init__(self, per_host: int, pause_s: float) -> None:
        self._per_host = per_host
        self._pause_s = pause_s
        self._hosts: dict[str, _HostState] = {}
        self._swept_at = -math.inf

    def __repr__(self) -> str:
        return f"<HostLimits {len(self._hosts)} known>"

    def __len__(self) -> int:
        return len(self._hosts)

    @asynccontextmanager
    async def rate_slot(self, name: str) -> AsyncIterator[None]:
        """Wait for a rate slot and keep it during the block.

        Raises BadStatus at once if the host asked for a pause that ends after the caller's deadline, and Preempted if
        a speculative request would have to wait.
        """
        self._sweep()
        host = self._hosts.setdefault(name, _HostState(self._per_host))
        host.users += 1
        try:
            _refuse_what_cannot_start(name, host)
            guess = self._make_way(name, host)
            try:
                async with host.limiter:
                    async with host.start_lock:
                        await self._wait_start(name, host)
                        host.next_start = anyio.current_time() + self._pause_s
                    yield
            finally:
                if guess in host.speculative:
                    host.speculative.remove(guess)
        finally:
            host.users -= 1
            if not host.users and host.earliest_start() <= anyio.current_time():
                self._hosts.pop(name, None)

    def _make_way(self, name: str, host: _HostState) -> SpeculativeRead | None:
        """Preempt a speculative request if a real one finds no place. Return the speculative request that may start.

        Raises Preempted if a speculative request would have to wait, or would take more than half of the places.
        """
        guess = speculative_read.get()
        if guess is None or guess.is_wanted:
            while not host.limiter.available_tokens and host.speculative and not host.speculative.pop().preempt():
                pass
            return None
        # With a pause between requests, a speculative one would make the next call wait.
        must_wait = self._pause_s or host.start_lock.locked() or host.earliest_start() > anyio.current_time()
        if must_wait or 2 * host.limiter.borrowed_tokens >= host.limiter.total_tokens:
            raise Preempted(f"{name} is busy with requests of calls")
        host.speculative.append(guess)
        return guess

    def cool_down(self, name: str, seconds: float, status: int) -> None:
        """Start no request to this host for `seconds`: it answered `status` and asked for a pause."""
        host = self._hosts.get(name)
        if host is not None:  # the caller holds a rate slot of it
            host.cooldown_until = max(host.cooldown_until, anyio.current_time() + min(seconds, _MAX_COOLDOWN_S))
            host.cooldown_status = status

    async def _wait_start(self, name: str, host: _HostState) -> None:
        while (rest := host.earliest_start() - anyio.current_time()) > 0:
            _refuse_what_cannot_start(name, host)
            await anyio.sleep(rest)

    def _sweep(self) -> None:
        now = anyio.current_time()
        if now < self._swept_at + _SWEEP_S:
            return
        self._swept_at = now
        for name in [name for name, host in self._hosts.items() if not host.users and host.earliest_start() <= now]:
            del self._hosts[name]


def _refuse_what_cannot_start(name: str, host: _HostState) -> None:
    rest = host.cooldown_until - anyio.current_time()
    if rest > 0 and host.cooldown_until >= anyio.current_effective_deadline():
        raise BadStatus(
            f"{name} answered {host.cooldown_status} to others and asked for a pause of {rest:.0f} s, "
            "longer than the time left",
            status=host.cooldown_status,
            retry_after=rest,
        )
