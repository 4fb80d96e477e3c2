"""The model servers of one configuration: which one a request goes to, and a connection pool and slots for each.

A conversation stays where its prefix is cached: at the first endpoint of its rendezvous order. It moves to the next one
only while the first one fails or is much busier. Then it comes back.

Rendezvous (highest random weight) hashing needs no state: every process that knows the same endpoints computes the same
order. When an endpoint leaves, only its own conversations move (Thaler and Ravishankar, 1998).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b

import anyio
import httpx2

from toolhub.config.llm import LlmSettings
from toolhub_agent.admission.controller import AdmissionStatistics, AdmittedTurn, ProgramAdmission, TurnRequest
from toolhub_agent.llm.concurrency import (
    MAX_SLOTS,
    START_SLOTS,
    ConcurrencyLimiter,
    EngineLoad,
    LoadScraper,
    SlotLimit,
    SlotStatistics,
    update_limit,
)
from toolhub_agent.llm.transport import ChatTransport

# --- Routing ----------------------------------------------------------------------------------------------------------


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
        self._imbalance_threshold = load_imbalance_threshold
        self._now = now
        self._health = {url: _Health() for url in self.urls}
        self._moved: OrderedDict[str, str] = OrderedDict()

    def __repr__(self) -> str:
        return (
            f"<EndpointRouter {len(self.urls)}, {len(self.failing())} failing, {len(self._moved)} conversations moved>"
        )

    def of(self, session: str) -> str:
        """The endpoint for the conversation's next request, as of now. Changes nothing."""
        order = self._order(session)
        preferred, here = order[0], self._moved.get(session)
        if here is None or here == preferred or not self.is_healthy(here):
            return self._least_imbalanced(order)
        if self._load(preferred) - self._load(here) <= self._imbalance_threshold // 2:
            return preferred
        return self._least_imbalanced([here, *(url for url in order if url != here)])

    def choose(self, session: str) -> str:
        """Choose the endpoint for the next request. Remember it if it is not the first of the order."""
        url = self.of(session)
        self._moved.pop(session, None)
        if len(self.urls) > 1 and url != rendezvous_order(session, self.urls)[0]:
            self._moved[session] = url
            while len(self._moved) > MAX_MOVED:
                self._moved.popitem(last=False)
        return url

    def forget(self, session: str) -> None:
        """Forget a conversation that sends no more requests."""
        self._moved.pop(session, None)

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

    def _least_imbalanced(self, order: list[str]) -> str:
        """The first endpoint, or the next healthy one that has so many requests less."""
        first = order[0]
        busy = self._load(first) - self._imbalance_threshold
        return next((url for url in order[1:] if self.is_healthy(url) and self._load(url) <= busy), first)


# --- The pool ---------------------------------------------------------------------------------------------------------

# Connections besides the slots, for hints, prefetches and metrics. A full pool would be a second, hidden queue.
EXTRA_CONNECTIONS = 64
# vLLM's and SGLang's server closes a connection that is idle for 5 s. We close first, to never send on a closed one.
KEEPALIVE_S = 4.0
MAX_KEEPALIVE_CONNECTIONS = 256
# A shorter secret could be any word in a server's text.
MIN_SECRET_CHARS = 6


@dataclass(frozen=True, slots=True)
class EndpointStatistics:
    """load: None if the engine reports none. admission: None if it is off."""

    slots: SlotStatistics
    load: EngineLoad | None
    is_failing: bool
    admission: AdmissionStatistics | None = None


class EndpointPool:
    """The pool that `open_endpoint_pool` opens: `endpoints` to choose, `slots` to hold, `client` to send with."""

    def __init__(self, settings: LlmSettings, clients: dict[str, httpx2.AsyncClient]) -> None:
        self.limiter = ConcurrencyLimiter(settings.max_in_flight or START_SLOTS)
        self.router = EndpointRouter(
            settings.endpoints, load=self.load, load_imbalance_threshold=settings.load_imbalance_threshold
        )
        self.admission = ProgramAdmission(settings.admission, self.router.urls)
        self.secrets = _secrets(settings)
        self._settings = settings
        self._clients = clients
        self._transports = {url: ChatTransport(url, http, secrets=self.secrets) for url, http in clients.items()}
        self._limits = dict.fromkeys(self.router.urls, SlotLimit())
        self._loads: dict[str, tuple[float, EngineLoad]] = {}

    def __repr__(self) -> str:
        return f"<EndpointPool {self.router!r}, {self.limiter!r}>"

    def client(self, url: str) -> httpx2.AsyncClient:
        """The endpoint's HTTP client, with its key and configured headers. Its timeouts are for connecting only."""
        return self._clients[url]

    def transport(self, url: str) -> ChatTransport:
        """Sends requests to the endpoint's API."""
        return self._transports[url]

    def load(self, url: str) -> int:
        """Requests that run or wait there: the engine's number, or ours if that is larger."""
        slots = self.limiter.statistics(url)
        load = self.engine_load(url)
        return slots.waiting + max(slots.in_use, load.running + load.waiting if load else 0)

    def engine_load(self, url: str) -> EngineLoad | None:
        """The engine's last report; None if it is too old."""
        at, load = self._loads.get(url, (0.0, None))
        return load if load and anyio.current_time() - at < 5 * self._settings.metrics_interval_s else None

    def statistics(self) -> dict[str, EndpointStatistics]:
        failing = self.router.failing()
        return {
            url: EndpointStatistics(
                self.limiter.statistics(url), self.engine_load(url), url in failing, self.admission.statistics(url)
            )
            for url in self.router.urls
        }

    async def admit(self, session: str, request: TurnRequest) -> tuple[str, AdmittedTurn]:
        """Choose the endpoint for a conversation's next turn, and wait until it may begin there.

        session: decides the endpoint, as far as admission leaves a choice.
        """
        with self.limiter.busy():
            while True:
                url = self.router.choose(session)
                if self.admission.is_on:
                    order = [url, *(each for each in self.router.urls if each != url)]
                    url = self.admission.choose(order, request, is_healthy=self.router.is_healthy)
                if (turn := await self.admission.begin(url, request)) is not None:
                    return url, turn

    def endpoint_failed(self, url: str, *, for_s: float | None = None) -> None:
        """Try this endpoint last for a while. Turns that wait for it go to another one that works."""
        self.router.failed(url, for_s=for_s)
        if len(self.router.failing()) < len(self.router.urls):
            self.admission.endpoint_failed(url)

    def update_load(self, url: str, load: EngineLoad | None) -> None:
        """Store an engine's report and adjust its slots. None: the engine reports no load."""
        self.admission.note_load(url, load)
        if load is None:
            self._loads.pop(url, None)
        else:
            self._loads[url] = (anyio.current_time(), load)
        if self._settings.max_in_flight is None:
            in_use = self.limiter.statistics(url).in_use
            self._limits[url] = update_limit(
                self._limits[url], load, in_use=in_use, target_waiting=self._settings.target_waiting
            )
            self.limiter.set_limit(url, self._limits[url].slots)

    def scrapers(self) -> list[LoadScraper]:
        """The scrapers that are needed: none for a single endpoint with a fixed number of slots and no admission."""
        is_fixed = self._settings.max_in_flight is not None and not self.admission.is_on
        if is_fixed and len(self.router.urls) == 1:
            return []
        interval = self._settings.metrics_interval_s
        return [
            LoadScraper(url, client, self.limiter, interval=interval, update=self.update_load)
            for url, client in self._clients.items()
        ]


@asynccontextmanager
async def open_endpoint_pool(settings: LlmSettings) -> AsyncIterator[EndpointPool]:
    """Open the servers of a configuration. Nothing is sent before the first request."""
    async with AsyncExitStack() as stack:
        urls = dict.fromkeys(settings.endpoints)
        clients = {url: await stack.enter_async_context(_http_client(url, settings)) for url in urls}
        pool = EndpointPool(settings, clients)
        raised: Exception | None = None
        async with anyio.create_task_group() as tasks:
            for scraper in pool.scrapers():
                tasks.start_soon(scraper.run)
            if pool.admission.is_on:
                tasks.start_soon(pool.admission.run)
            try:
                yield pool
            except Exception as exc:  # the task group would wrap the caller's error in an ExceptionGroup
                raised = exc
            finally:
                tasks.cancel_scope.cancel()
        if raised is not None:
            raise raised


def _http_client(url: str, settings: LlmSettings) -> httpx2.AsyncClient:
    headers = {} if settings.api_key is None else {"authorization": f"Bearer {settings.api_key.get_secret_value()}"}
    return httpx2.AsyncClient(
        base_url=url,
        headers={**headers, **settings.headers},
        # Only connecting has a timeout. Callers use cancel scopes as deadlines, which also end a stalled read.
        timeout=httpx2.Timeout(None, connect=settings.connect_timeout_s),
        limits=httpx2.Limits(
            max_connections=(settings.max_in_flight or MAX_SLOTS) + EXTRA_CONNECTIONS,
            max_keepalive_connections=MAX_KEEPALIVE_CONNECTIONS,
            keepalive_expiry=KEEPALIVE_S,
        ),
    )


def _secrets(settings: LlmSettings) -> tuple[str, ...]:
    key = settings.api_key.get_secret_value() if settings.api_key else ""
    found = {key, *settings.headers.values()}
    return tuple(sorted((s for s in found if len(s) >= MIN_SECRET_CHARS), key=len, reverse=True))
