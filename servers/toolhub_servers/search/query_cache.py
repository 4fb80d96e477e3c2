"""Answers of search services, kept for all tasks for a while: the same query is paid for once."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

from toolhub.config.section import Section
from toolhub.shared_resources import SharedResources
from toolhub_servers.search.model import SearchFailed
from toolhub_servers.search.settings import SharedSettings
from toolhub_servers.web.cache import open_cache
from toolhub_servers.web.errors import WebError

T = TypeVar("T")


class QueryCache:
    """Keeps the answers of one backend for `cache_s`; with 0 it keeps nothing."""

    def __init__(self, name: str, own: Section, shared: SharedSettings, resources: SharedResources) -> None:
        """own: the options of the backend, which are part of the key: another account may get another answer."""
        self._name = name
        self._resources = resources
        self._seconds = shared.cache_s
        self._identity = hashlib.sha256(own.model_dump_json().encode()).hexdigest()

    async def get(self, asked: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the kept answer for the key `asked`, or what `ask` returns. Raises what `ask` raises, SearchFailed."""
        if not self._seconds:
            return await ask()
        cache = await self._resources.get_or_open(
            f"cache search {self._seconds:g}", lambda: open_cache(ttl_s=self._seconds)
        )
        try:
            return await cache.get((self._name, self._identity, asked), ask)
        except WebError as exc:
            raise SearchFailed(f"the search was ended: {exc}") from exc
