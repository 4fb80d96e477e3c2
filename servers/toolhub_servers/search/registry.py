"""The search backends, and the options of a server that has them: from a config, or from a command line.

To add a backend, write a module in `backends/` (see `backend.py`) and add its `Backend` to `BACKENDS`.
"""

from __future__ import annotations

import functools
import os
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field, create_model

from toolhub_servers.search.backend import SEARCH_WEB, Backend, SharedSettings
from toolhub_servers.search.backends.exa import EXA
from toolhub_servers.search.backends.local.backend import LOCAL
from toolhub_servers.search.backends.searxng import SEARXNG
from toolhub_servers.search.backends.serper import SERPER
from toolhub_servers.search.backends.sogou import SOGOU
from toolhub_servers.serving.options import validated

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (SERPER, SEARXNG, EXA, SOGOU, LOCAL)}


def _check_name(name: str) -> str:
    if name not in BACKENDS:
        *others, last = map(repr, BACKENDS)
        raise ValueError(f"Input should be {', '.join(others)} or {last}")
    return name


class SearchSettings(SharedSettings):
    """The options of a search server. `settings_model()` adds a section for each backend."""

    backends: list[Annotated[str, AfterValidator(_check_name)]] = Field(default=["serper"])
    """If one fails, the next one is asked. With an empty list there is no search."""

    def section(self, backend: str) -> Any:
        """The options of one backend."""
        return getattr(self, backend)


def settings_model() -> type[SearchSettings]:
    """Return the model of all options of a search server."""
    return _model_of(tuple(BACKENDS.values()))


@functools.cache
def _model_of(backends: tuple[Backend, ...]) -> type[SearchSettings]:
    sections: dict[str, Any] = {
        backend.name: (backend.settings, Field(default_factory=backend.settings)) for backend in backends
    }
    return create_model("SearchSettings", __base__=SearchSettings, __doc__=SearchSettings.__doc__, **sections)


def read_settings(options: Mapping[str, Any]) -> SearchSettings:
    """Return the settings. Raises ValueError, with one sentence for each thing that is wrong."""
    web = options.get("web") or {}
    web = {**SEARCH_WEB, **web} if isinstance(web, Mapping) else web
    settings = validated(settings_model(), {**options, "web": web})
    if problems := list(_problems(settings)):
        raise ValueError("; ".join(problems))
    return settings


def _problems(settings: SearchSettings) -> Iterator[str]:
    """Yield what the chosen backends need and do not have."""
    sections = {name: settings.section(name) for name in settings.backends}
    for name, section in sections.items():
        for option in section.unset:
            variable = section.VARIABLES[option]
            yield (
                f"search backend '{name}' needs the option {name}.{option}: give it in the config, for example as "
                f"${{{variable}}}, or set the environment variable {variable} if the server runs alone"
            )
    keys = settings.section("sogou")
    if len(keys.unset) == 1 and "sogou" not in sections:  # the tool sogou_search needs no backend
        yield "sogou.secret_id (TENCENTCLOUD_SECRET_ID) and sogou.secret_key (TENCENTCLOUD_SECRET_KEY) go together"
    for section in sections.values():
        if problem := section.find_problem():
            yield problem


# --- the command line -------------------------------------------------------------------------------------------------

VARIABLES = [variable for backend in BACKENDS.values() for variable in backend.settings.VARIABLES.values()]
ENVIRONMENT = f"Environment: {', '.join(VARIABLES)}."


def add_search_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        metavar="NAME",
        dest="backends",
        action="append",
        choices=tuple(BACKENDS),
        default=[],
        help=f"one of {', '.join(BACKENDS)}; can be given several times, and if one fails the next is asked; without "
        "the flag serper, or none if the environment has only the keys of Tencent Cloud",
    )
    parser.add_argument(
        "--folder", metavar="DIR", default=os.environ.get("SEARCH_FOLDER"), help="what 'local' searches"
    )
    parser.epilog = ENVIRONMENT


def search_options(backends: Sequence[str], folder: str | None) -> dict[str, Any]:
    """Return the options of a search server that the command line and the environment give."""
    sections = {name: backend.settings.from_environment() for name, backend in BACKENDS.items()}
    has_sogou_only = not SOGOU.settings(**sections["sogou"]).unset and "api_key" not in sections["serper"]
    return {
        "backends": list(backends) or ([] if has_sogou_only else ["serper"]),
        **sections,
        "local": {"folder": folder},
    }


def is_set(variable: str) -> bool:
    """Whether a switch in the environment is on, by MiroFlow's words for that."""
    return os.environ.get(variable, "").lower() in ("true", "1", "yes")
