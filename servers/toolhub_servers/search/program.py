"""Search servers as programs: keys come from the environment, under the names that MiroFlow gives them."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any, get_args

from toolhub_servers.search.settings import Backend

ENVIRONMENT = (
    "Environment: SERPER_API_KEY, SERPER_BASE_URL, SEARXNG_BASE_URL, EXA_API_KEY, EXA_BASE_URL, "
    "TENCENTCLOUD_SECRET_ID, TENCENTCLOUD_SECRET_KEY, SEARCH_FOLDER."
)


def add_search_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        metavar="NAME",
        dest="backends",
        action="append",
        choices=get_args(Backend),
        default=[],
        help=f"one of {', '.join(get_args(Backend))}; can be given several times, the next is asked when one fails; "
        "without it serper, or none if only the keys of Tencent Cloud are there",
    )
    parser.add_argument(
        "--folder", metavar="DIR", default=os.environ.get("SEARCH_FOLDER"), help="what 'local' searches"
    )
    parser.epilog = ENVIRONMENT


def search_options(backends: Sequence[str], folder: str | None) -> dict[str, Any]:
    """The options of a search server that the command line and the environment give."""
    values = os.environ.get
    sogou = sogou_options()
    usual = [] if all(sogou.values()) and not values("SERPER_API_KEY") else ["serper"]
    return {
        "backends": list(backends) or usual,
        "serper": {"api_key": values("SERPER_API_KEY"), "base_url": values("SERPER_BASE_URL")},
        "searxng": {"base_url": values("SEARXNG_BASE_URL")},
        "exa": {"api_key": values("EXA_API_KEY"), "base_url": values("EXA_BASE_URL")},
        "sogou": sogou,
        "local": {"folder": folder},
    }


def sogou_options() -> dict[str, str | None]:
    """The keys of Tencent Cloud that the environment gives."""
    return {
        "secret_id": os.environ.get("TENCENTCLOUD_SECRET_ID"),
        "secret_key": os.environ.get("TENCENTCLOUD_SECRET_KEY"),
    }


def page_options() -> dict[str, Any]:
    """The options of reading pages that the environment gives."""
    return {"jina_api_key": os.environ.get("JINA_API_KEY", ""), "jina_base_url": os.environ.get("JINA_BASE_URL", "")}


def is_set(variable: str) -> bool:
    """Whether a switch in the environment is on, by MiroFlow's words for that."""
    return os.environ.get(variable, "").lower() in ("true", "1", "yes")
