"""Reading web pages and documents as text: by Jina Reader, by ourselves or through a browser.

The names are imported when they are used: worker processes import this package for its conversion alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolhub_servers.scrape.model import DATASET_REFUSAL, DatasetRefused, Page, Reader, Renderer, Unreadable
    from toolhub_servers.scrape.pages import Pages, open_pages
    from toolhub_servers.scrape.settings import PageSettings
    from toolhub_servers.scrape.website import scrape_website

__all__ = [
    "DATASET_REFUSAL",
    "DatasetRefused",
    "Page",
    "PageSettings",
    "Pages",
    "Reader",
    "Renderer",
    "Unreadable",
    "open_pages",
    "scrape_website",
]
_HOMES = {"Pages": "pages", "open_pages": "pages", "PageSettings": "settings", "scrape_website": "website"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'model')}"), name)
