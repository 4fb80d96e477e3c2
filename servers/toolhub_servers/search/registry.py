"""The search backends, and the options of a server that has them.

To add a backend: write a module in `backends/` with its settings, its class and its `Backend`, and add it to `BACKENDS`
and to `SearchSettings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from toolhub_servers.search.backends.exa import EXA, ExaSettings
from toolhub_servers.search.backends.local.backend import LOCAL, LocalSettings
from toolhub_servers.search.backends.searxng import SEARXNG, SearxngSettings
from toolhub_servers.search.backends.serper import SERPER, SerperSettings
from toolhub_servers.search.backends.sogou import SOGOU, SogouSettings
from toolhub_servers.search.model import Backend
from toolhub_servers.search.settings import SEARCH_WEB, SharedSettings
from toolhub_servers.serving.options import validated

BACKENDS: Mapping[str, Backend] = {backend.name: backend for backend in (SERPER, SEARXNG, EXA, SOGOU, LOCAL)}


def _check_name(name: str) -> str:
    if name not in BACKENDS:
        *others, last = map(repr, BACKENDS)
        raise ValueError(f"Input should be {', '.join(others)} or {last}")
    return name


class SearchSettings(SharedSettings):
    """The options of a search server."""

    backends: list[Annotated[str, AfterValidator(_check_name)]] = Field(default=["serper"])
    """If one fails, the next one is asked. With an empty list searching is not available."""
    serper: SerperSettings = Field(default_factory=SerperSettings)
    searxng: SearxngSettings = Field(default_factory=SearxngSettings)
    exa: ExaSettings = Field(default_factory=ExaSettings)
    sogou: SogouSettings = Field(default_factory=SogouSettings)
    local: LocalSettings = Field(default_factory=LocalSettings)


def read_settings(options: Mapping[str, Any]) -> SearchSettings:
    """Return the settings. Raises ValueError, with one sentence for each thing that is wrong."""
    web = options.get("web") or {}
    settings = validated(SearchSettings, {**options, "web": {**SEARCH_WEB, **web} if isinstance(web, Mapping) else web})
    if problems := list(_problems(settings)):
        raise ValueError("; ".join(problems))
    return settings


def _problems(settings: SearchSettings) -> Iterator[str]:
    """What the chosen backends need and do not have."""
    chosen = [BACKENDS[name] for name in settings.backends]
    for backend in chosen:
        own = getattr(settings, backend.name)
        for option in backend.required:
            if not getattr(own, option):
                variable = backend.environment[option]
                yield (
                    f"search backend '{backend.name}' needs the option {backend.name}.{option}: give it in the config, "
                    f"for example as ${{{variable}}}, or set the environment variable {variable} if the server runs "
                    "alone"
                )
    keys = settings.sogou
    if bool(keys.secret_id) != bool(keys.secret_key) and "sogou" not in settings.backends:
        yield "sogou.secret_id (TENCENTCLOUD_SECRET_ID) and sogou.secret_key (TENCENTCLOUD_SECRET_KEY) go together"
    for backend in chosen:
        if problem := backend.find_problem(getattr(settings, backend.name)):
            yield problem
