"""The command line of the search servers. Keys come from environment variables with MiroFlow's names."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from toolhub_servers.search.registry import BACKENDS

VARIABLES = [variable for backend in BACKENDS.values() for variable in backend.environment.values()]
ENVIRONMENT = f"Environment: {', '.join(VARIABLES)}."


def add_search_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        metavar="NAME",
        dest="backends",
        action="append",
        choices=tuple(BACKENDS),
        default=[],
        help=f"one of {', '.join(BACKENDS)}; can be given several times, the next is asked when one fails; "
        "without it serper, or none if only the keys of Tencent Cloud are there",
    )
    parser.add_argument(
        "--folder", metavar="DIR", default=os.environ.get("SEARCH_FOLDER"), help="what 'local' searches"
    )
    parser.epilog = ENVIRONMENT


def search_options(backends: Sequence[str], folder: str | None) -> dict[str, Any]:
    """The options of a search server that the command line and the environment give."""
    sections = {name: backend_options(name) for name in BACKENDS}
    has_sogou_only = all(sections["sogou"].values()) and not sections["serper"]["api_key"]
    return {
        "backends": list(backends) or ([] if has_sogou_only else ["serper"]),
        **sections,
        "local": {"folder": folder},
    }


def backend_options(name: str) -> dict[str, str | None]:
    """The options of one backend that the environment gives."""
    return {option: os.environ.get(variable) for option, variable in BACKENDS[name].environment.items()}


def page_options() -> dict[str, Any]:
    """The options of reading pages that the environment gives."""
    return {"jina_api_key": os.environ.get("JINA_API_KEY", ""), "jina_base_url": os.environ.get("JINA_BASE_URL", "")}


def is_set(variable: str) -> bool:
    """Whether a switch in the environment is on, by MiroFlow's words for that."""
    return os.environ.get(variable, "").lower() in ("true", "1", "yes")
