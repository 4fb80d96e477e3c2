"""Decides which endpoint a conversation's next request goes to.

A conversation stays where its prefix is cached: at the first endpoint of its rendezvous order. It moves to the next one
only while the first one fails or is much busier. Then it comes back.

Rendezvous (highest random weight) hashing needs no state: every process that knows the same endpoints computes the same
order. When an endpoint leaves, only its own conversations move (Thaler and Ravishankar, 1998).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b


def rendezvous_order(session: str, endpoints: Iterable[str]) -> list[str]:
    """The endpoints in the order in which this conversation prefers them."""
    return sorted(endpoints, key=lambda endpoint: (_weight(session, endpoint), endpoint), reverse=True)


def _weight(session: str, endpoint: str) -> bytes:
    # `hash()` differs between processes.
    return blake2b(f"{endpoint}\0{session}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


# How long an endpoint that failed is tried last. The time doubles with each failure until it works again.
FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 30.0
# For how many conversations a move to another endpoint is kept. A forgotten one returns, which costs a prefill.
MAX_MOVED = 10_000


@dataclass
class _Health:
    failures: int = 0
    out_until: float = 0.0


class EndpointRouter:
    """Chooses among endpoints. Never waits. Its users report failures; `load` reports loads."""

    def __init__(
        self,
        urls: Iterable[str],
        *,
        load: Callable[[str], int],
        load_imbalance_threshold: int = 16,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """load: requests that run or wait at an endpoint.

        load_imbalance_threshold: a conversation leaves an endpoint that has this many requests more than another one.
        """
        self.urls = tuple(dict.fromkeys(urls))
        self._load = load
        self._spill_load = load_imbalance_threshold
        self._now = now
        self._health = {url: _Health() for url in self.urls}
        self._away: OrderedDict[str, str] = OrderedDict()

    def __repr__(self) -> str:
        return f"<EndpointRouter {len(self.urls)}, {len(self.failing())} failing, {len(self._away)} conversations away>"

    def of(self, session: str) -> str:
        """The endpoint for the conversation's next request, as of now. Changes nothing."""
        order = self._order(session)
        home, here = order[0], self._away.get(session)
        if here is None or here == home or not self.is_healthy(here):
            return self._with_spill(order)
        if self._load(home) - self._load(here) <= self._spill_load // 2:
            return home
        return self._with_spill([here, *(url for url in order if url != here)])

    def choose(self, session: str) -> str:
        """Choose the endpoint for the next request. Remember it if it is not the first of the order."""
        url = self.of(session)
        self._away.pop(session, None)
        if len(self.urls) > 1 and url != rendezvous_order(session, self.urls)[0]:
            self._away[session] = url
            while len(self._away) > MAX_MOVED:
                self._away.popitem(last=False)
        return url

    def forget(self, session: str) -> None:
        """Forget a conversation that sends no more requests."""
        self._away.pop(session, None)

    def failed(self, url: str, *, for_s: float | None = None) -> None:
        """Try this endpoint last for a while. for_s: the time it asked for; else longer with each failure."""
        health = self._health[url]
        health.failures += 1
        pause = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(health.failures - 1, 10))
        health.out_until = max(health.out_until, self._now() + min(LONGEST_BACKOFF_S, max(pause, for_s or 0.0)))

    def worked(self, url: str) -> None:
        self._health[url] = _Health()

    def is_healthy(self, url: str) -> bool:
        return self._health[url].out_until <= self._now()

    def failing(self) -> tuple[str, ...]:
        return tuple(url for url in self.urls if not self.is_healthy(url))

    def _order(self, session: str) -> list[str]:
        """Rendezvous order, with failing endpoints last. Of those, the one that returns soonest comes first."""
        order = rendezvous_order(session, self.urls)
        healthy = [url for url in order if self.is_healthy(url)]
        return healthy + sorted((u for u in order if u not in healthy), key=lambda u: self._health[u].out_until)

    def _with_spill(self, order: list[str]) -> str:
        """The first endpoint, or the next healthy one that has so many requests less."""
        first = order[0]
        busy = self._load(first) - self._spill_load
        return next((url for url in order[1:] if self.is_healthy(url) and self._load(url) <= busy), first)
