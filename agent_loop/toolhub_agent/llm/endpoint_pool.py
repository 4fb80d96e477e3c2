"""The model servers of one configuration: a connection pool, slots and routing for each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import anyio
import httpx2

from toolhub.config.llm import LlmSettings
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
from toolhub_agent.llm.routing import EndpointRouter
from toolhub_agent.llm.transport import ChatTransport

# Connections besides the slots, for hints, prefetches and metrics. A full pool would be a second, hidden queue.
EXTRA_CONNECTIONS = 64
# vLLM's and SGLang's server closes a connection that is idle for 5 s. We close first, to never send on a closed one.
KEEPALIVE_S = 4.0
MAX_KEEPALIVE_CONNECTIONS = 256
# A shorter secret could be any word in a server's text.
MIN_SECRET_CHARS = 6


@dataclass(frozen=True, slots=True)
class EndpointStatistics:
    """load: None if the engine reports none."""

    slots: SlotStatistics
    load: EngineLoad | None
    is_failing: bool


class EndpointPool:
    """The pool that `open_endpoint_pool` opens: `endpoints` to choose, `slots` to hold, `client` to send with."""

    def __init__(self, settings: LlmSettings, clients: dict[str, httpx2.AsyncClient]) -> None:
        self.limiter = ConcurrencyLimiter(settings.max_in_flight or START_SLOTS)
        self.router = EndpointRouter(
            settings.endpoints, load=self.load, load_imbalance_threshold=settings.load_imbalance_threshold
        )
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
        lane = self.limiter.statistics(url)
        load = self.engine_load(url)
        return lane.waiting + max(lane.in_use, load.running + load.waiting if load else 0)

    def engine_load(self, url: str) -> EngineLoad | None:
        """The engine's last report; None if it is too old."""
        at, load = self._loads.get(url, (0.0, None))
        return load if load and anyio.current_time() - at < 5 * self._settings.metrics_interval_s else None

    def statistics(self) -> dict[str, EndpointStatistics]:
        failing = self.router.failing()
        return {
            url: EndpointStatistics(self.limiter.statistics(url), self.engine_load(url), url in failing)
            for url in self.router.urls
        }

    def update_load(self, url: str, load: EngineLoad | None) -> None:
        """Store an engine's report and adjust its slots. None: the engine reports no load."""
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
        """The scrapers that are needed: none for a single endpoint with a fixed number of slots."""
        if self._settings.max_in_flight is not None and len(self.router.urls) == 1:
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
