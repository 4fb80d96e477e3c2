"""What services have answered, kept for all tasks for a while: the same question is paid for once."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

from toolhub.config.section import Section
from toolhub.shared_resources import SharedResources
from toolhub_servers.search.model import SearchFailed
from toolhub_servers.search.settings import Backend, SearchSettings
from toolhub_servers.web.cache import open_cache
from toolhub_servers.web.errors import WebError

T = TypeVar("T")


class QueryCache:
    """The answers of one backend, for `cache_s` of the settings; 0: none is kept."""

    def __init__(self, name: Backend, settings: SearchSettings, resources: SharedResources) -> None:
        self._name = name
        self._resources = resources
        self._seconds = settings.cache_s
        # Of another key or another address an answer may be another.
        section: Section = getattr(settings, name)
        self._identity = hashlib.sha256(section.model_dump_json().encode()).hexdigest()

    async def get(self, asked: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to `asked`, from `ask` if nobody knows it. Raises what `ask` raises, SearchFailed."""
        if not self._seconds:
            return await ask()
        cache = await self._resources.get_or_open(
            f"cache search {self._seconds:g}", lambda: open_cache(ttl_s=self._seconds)
        )
        try:
            return await cache.get((self._name, self._identity, asked), ask)
        except WebError as exc:
            raise SearchFailed(f"the search was ended: {exc}") from exc
