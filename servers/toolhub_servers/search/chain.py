"""One search over several backends: in order, within one time limit, and each query asked once for all tasks."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio

from toolhub.extensions import BuiltinContext
from toolhub.shared_resources import SharedResources
from toolhub_servers._hosted import Lobby
from toolhub_servers._overload import tell_pressure
from toolhub_servers.search.errors import SearchFailed
from toolhub_servers.search.exa import open_exa
from toolhub_servers.search.known import Known
from toolhub_servers.search.local import open_local
from toolhub_servers.search.model import Query, Results, SearchBackend
from toolhub_servers.search.searxng import open_searxng
from toolhub_servers.search.serper import open_serper
from toolhub_servers.search.settings import Backend, SearchSettings
from toolhub_servers.search.sogou import open_sogou

Opener = Callable[[SearchSettings, SharedResources], Awaitable[SearchBackend]]

OPENERS: dict[Backend, Opener] = {
    "serper": open_serper,
    "searxng": open_searxng,
    "exa": open_exa,
    "sogou": open_sogou,
    "local": open_local,
}

# Searching a folder costs nothing, and its files change; SearXNG's pages are kept, which hold more than one query.
KEEPERS: frozenset[Backend] = frozenset({"local", "searxng"})

logger = logging.getLogger(__name__)


class Search:
    """The backends of one server. Opened with each query, which is cheap: what is dear is the hub's and shared."""

    def __init__(self, host: BuiltinContext | None, settings: SearchSettings) -> None:
        self.settings = settings
        self.lobby = Lobby(host)

    def __repr__(self) -> str:
        return f"<Search {' '.join(self.settings.backends) or 'without backends'}>"

    @property
    def is_available(self) -> bool:
        return bool(self.settings.backends)

    @asynccontextmanager
    async def lifespan(self, server: Any) -> AsyncIterator[None]:
        """What the server runs in. An index that takes time is begun here rather than with the first query."""
        async with self.lobby.lifespan(server):
            if "local" in self.settings.backends:
                await open_local(self.settings, self.lobby.resources)
            yield

    async def find(self, query: Query) -> Results:
        """Return the results of the first backend that has an answer. Raises SearchFailed with the reasons of all."""
        asking = [(name, self._asking(name)) for name in self.settings.backends]
        with _pressure_told():
            return await first_answer(query, asking, timeout=self.settings.timeout_s)

    async def sogou_pages(self, query: str, count: int) -> dict[str, Any]:
        """Return Sogou's own answer, whether or not it is among the backends. Raises SearchFailed."""
        with anyio.move_on_after(self.settings.timeout_s), _pressure_told():
            sogou = await open_sogou(self.settings, self.lobby.resources)
            return await self._known("sogou").get(("pages", query, count), lambda: sogou.pages(query, count))
        raise SearchFailed(_late(self.settings.timeout_s))

    def _asking(self, name: Backend) -> Callable[[Query], Awaitable[Results]]:
        async def ask(query: Query) -> Results:
            backend = await OPENERS[name](self.settings, self.lobby.resources)
            if name in KEEPERS:
                return await backend.search(query)
            return await self._known(name).get(query, lambda: backend.search(query))

        return ask

    def _known(self, name: Backend) -> Known:
        return Known(name, self.settings, self.lobby.resources)


async def first_answer(
    query: Query, backends: Sequence[tuple[str, Callable[[Query], Awaitable[Results]]]], *, timeout: float
) -> Results:
    """Ask one after the other; nothing found is an answer, too. Raises SearchFailed.

    timeout: seconds for all together.
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
        pressure=next((failure.pressure for failure in failures if failure.pressure is not None), None),
    )


@contextmanager
def _pressure_told() -> Iterator[None]:
    """Tell the hub of what is raised here because services have too many requests."""
    try:
        yield
    except SearchFailed as exc:
        tell_pressure(exc.pressure)
        raise


def _late(seconds: float) -> str:
    return f"no search backend answered within {seconds:g} s"
