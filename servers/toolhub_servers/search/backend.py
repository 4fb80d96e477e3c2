"""What a search backend is made of: its options, how it is opened, its HTTP service, and the cache of its answers.

A backend is one module in `backends/` and one line in `registry.py`; `backends/exa.py` is a short example. The module
has the options (a `BackendSettings`), a class with `search()`, and the `Backend` that describes both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import AfterValidator, Field, model_validator

from toolhub.config.section import Pause, Seconds, Section
from toolhub.shared_resources import SharedResources
from toolhub_servers.search.model import Query, Results, SearchFailed, ServiceRefused
from toolhub_servers.serving.options import ServiceSettings
from toolhub_servers.serving.overload import overload_in
from toolhub_servers.web.cache import open_cache
from toolhub_servers.web.client import Web, open_web
from toolhub_servers.web.errors import BadStatus, Forbidden, WebError, WebTimeout
from toolhub_servers.web.request import authority_of
from toolhub_servers.web.settings import WebSettings

T = TypeVar("T")

# A search service gets many small requests at once, and answers within seconds or not at all.
SEARCH_WEB = {"total_s": 20.0, "per_host": 32, "retries": 2}
# An answer has some kilobytes. The limit keeps a wrong address from filling the memory.
MAX_BYTES = 4 << 20
# How much an error shows of an answer that cannot be used.
SHOWN = 200


class SearchBackend(Protocol):
    async def search(self, query: Query) -> Results:
        """Return what is found, which may be nothing. Raises SearchFailed."""


# --- options ----------------------------------------------------------------------------------------------------------


def _check_base_url(url: str) -> str:
    try:
        authority_of(url)
    except Forbidden as exc:
        raise ValueError(f"{url!r} is not an http or https URL") from exc
    return url.rstrip("/")


BaseUrl = Annotated[str, AfterValidator(_check_base_url)]


class BackendSettings(ServiceSettings):
    """The options of one backend, with their environment variables (`VARIABLES`) and the required ones (`REQUIRED`).

    An option that is null or empty counts as not given, because that is what a config makes of an unset variable.
    """

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {name: value for name, value in data.items() if value is not None and value != ""}

    def find_problem(self) -> str | None:
        """Return a sentence about what else is wrong. Called when a server is created; it may look at the disk."""
        return None


class SharedSettings(Section):
    """The options that hold for all backends of a server. Times are seconds."""

    web: WebSettings = Field(default_factory=lambda: WebSettings.model_validate(SEARCH_WEB))
    timeout_s: Seconds = 60
    """For one search over all backends, with their retries."""
    cache_s: Pause = 600
    """Within this time, the answer to the same query is given again, to every task; 0: every query is sent."""


@dataclass(frozen=True, slots=True, eq=False)
class Backend:
    """A backend as the search servers see it.

    name: in the option `backends`, and the name of the section with the backend's own options.
    settings: the model of that section.
    open: given that section, the shared options and the hub's resources, returns the backend. It is called for each
    query, so it must be cheap: keep connections and caches in the hub's resources.
    caches_itself: the backend keeps its own answers. Otherwise they are kept for `cache_s`.
    opens_at_start: open the backend when the server starts, and not only with the first query.
    """

    name: str
    settings: type[BackendSettings]
    open: Callable[[Any, SharedSettings, SharedResources], Awaitable[SearchBackend]]
    caches_itself: bool = False
    opens_at_start: bool = False


# --- the HTTP service of a backend ------------------------------------------------------------------------------------


class Service:
    """A search service on the web. Its failures are SearchFailed. Use `open_service()`.

    hints: what to do about a status, by status.
    """

    def __init__(self, name: str, base_url: str, web: Web, hints: Mapping[int, str]) -> None:
        self.name = name
        self.base_url = base_url
        self._web = web
        self._hints = hints

    def __repr__(self) -> str:
        return f"<Service {self.name} at {self.base_url}>"

    async def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        content: bytes | None = None,
    ) -> dict[str, Any]:
        """Return the JSON object of the answer. Raises SearchFailed.

        A search changes nothing, so it may be sent again.
        """
        try:
            reply = await self._web.request(
                method,
                self.base_url + path,
                headers=headers,
                json=json,
                content=content,
                max_bytes=MAX_BYTES,
                is_safe=True,
            )
        except BadStatus as exc:
            raise self._refusal(exc) from exc
        except WebTimeout as exc:
            raise SearchFailed(f"{self.name} timed out: {exc}") from exc
        except WebError as exc:
            raise SearchFailed(f"{self.name} could not be reached: {exc}") from exc
        try:
            answer = reply.json()
        except ValueError as exc:
            raise self.invalid_answer("is not JSON", reply.body) from exc
        if not isinstance(answer, dict):
            raise self.invalid_answer("is not a JSON object", reply.body)
        return answer

    def invalid_answer(self, why: str, body: bytes) -> SearchFailed:
        shown = body[:SHOWN].decode(errors="replace").strip()
        return SearchFailed(f"{self.name} gave an answer that {why}: {shown or 'it is empty'}")

    def _refusal(self, exc: BadStatus) -> SearchFailed:
        hint = self._hints.get(exc.status)
        told = " ".join(exc.text.split())[:SHOWN]
        pause = f"it asks for a pause of {exc.retry_after:.0f} s" if exc.retry_after else None
        notes = "; ".join(filter(None, [hint, pause]))
        message = (
            f"{self.name} answered {exc.status}" + (f": {told}" if told else "") + (f" ({notes})" if notes else "")
        )
        kind = ServiceRefused if exc.status < 500 and exc.status != 429 else SearchFailed
        return kind(message, overload=overload_in(exc))


async def open_service(
    name: str, base_url: str, resources: SharedResources, settings: WebSettings, hints: Mapping[int, str]
) -> Service:
    """Return the service with the hub's client for it. The address comes from the config, so it may be private."""
    allowed = [*settings.allow_private, authority_of(base_url)]
    trusting = settings.model_copy(update={"allow_private": allowed})
    return Service(name, base_url, await open_web(resources, name, trusting), hints)


# --- the cache of a backend's answers ---------------------------------------------------------------------------------


class QueryCache:
    """The answers of one backend, kept for `cache_s` for all tasks: the same query is paid for once."""

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
