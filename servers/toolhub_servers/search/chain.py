"""One search over several backends: in order, within one time limit, and each query is sent once for all tasks."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio

from toolhub.extensions import BuiltinContext
from toolhub_servers.search.backend import QueryCache, SearchBackend
from toolhub_servers.search.backends.sogou import open_sogou
from toolhub_servers.search.model import Query, Results, SearchFailed
from toolhub_servers.search.registry import BACKENDS, SearchSettings
from toolhub_servers.serving.overload import report_overload
from toolhub_servers.serving.server import ServerContext

logger = logging.getLogger(__name__)


class Search:
    """The backends of one server. Opening one for each query is cheap: what is expensive is shared in the hub."""

    def __init__(self, context: BuiltinContext | None, settings: SearchSettings) -> None:
        self.settings = settings
        self.context = ServerContext(context)

    def __repr__(self) -> str:
        return f"<Search {' '.join(self.settings.backends) or 'without backends'}>"

    @property
    def is_available(self) -> bool:
        return bool(self.settings.backends)

    @asynccontextmanager
    async def lifespan(self, server: Any) -> AsyncIterator[None]:
        """The lifespan of the MCP server. It opens the backends that need time to be ready."""
        async with self.context.lifespan(server):
            for name in self.settings.backends:
                if BACKENDS[name].opens_at_start:
                    await self._open(name)
            yield

    async def find(self, query: Query) -> Results:
        """Return the results of the first backend that answers. Raises SearchFailed with all reasons."""
        asking = [(name, self._asking(name)) for name in self.settings.backends]
        with _overload_reported():
            return await first_results(query, asking, timeout=self.settings.timeout_s)

    async def sogou_pages(self, query: str, count: int) -> dict[str, Any]:
        """Return Sogou's own answer, even if it is not among the backends. Raises SearchFailed."""
        with anyio.move_on_after(self.settings.timeout_s), _overload_reported():
            sogou = await open_sogou(self.settings.section("sogou"), self.settings, self.context.resources)
            return await self._cache("sogou").get(("pages", query, count), lambda: sogou.pages(query, count))
        raise SearchFailed(_late(self.settings.timeout_s))

    def _asking(self, name: str) -> Callable[[Query], Awaitable[Results]]:
        async def ask(query: Query) -> Results:
            backend = await self._open(name)
            if BACKENDS[name].caches_itself:
                return await backend.search(query)
            return await self._cache(name).get(query, lambda: backend.search(query))

        return ask

    async def _open(self, name: str) -> SearchBackend:
        return await BACKENDS[name].open(self.settings.section(name), self.settings, self.context.resources)

    def _cache(self, name: str) -> QueryCache:
        return QueryCache(name, self.settings.section(name), self.settings, self.context.resources)


async def first_results(
    query: Query, backends: Sequence[tuple[str, Callable[[Query], Awaitable[Results]]]], *, timeout: float
) -> Results:
    """Ask one backend after the other. Finding nothing is an answer too. Raises SearchFailed.

    timeout: seconds for all backends together.
    """
    failures: list[SearchFailed] = []
    with anyio.move_on_after(timeout) as limit:
        for name, ask in backends:
            try:
                return await ask(query)
            except SearchFailed as exc:
                logger.warning("search backend %s failed: %s", name, exc)
                failures.append(exc)
    if limit.cancelled_caught:
        failures.append(SearchFailed(_late(timeout)))
    if len(failures) == 1:
        raise failures[0]
    raise SearchFailed(
        "; ".join(map(str, failures)) or "no search backend is configured",
        overload=next((failure.overload for failure in failures if failure.overload is not None), None),
    )


@contextmanager
def _overload_reported() -> Iterator[None]:
    """Report an overload of a service to the hub."""
    try:
        yield
    except SearchFailed as exc:
        report_overload(exc.overload)
        raise


def _late(seconds: float) -> str:
    return f"no search backend answered within {seconds:g} s"
