"""Reaching the web from many tasks at once: pooled, polite, bounded, cached, and never into the private network.

The names are imported when they are used: worker processes import this package for a small part of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolhub_servers.web.charset import decode_text
    from toolhub_servers.web.client import Web, open_web
    from toolhub_servers.web.errors import BadStatus, Forbidden, NoWorker, TooCostly, Unreachable, WebError, WebTimeout
    from toolhub_servers.web.guard import check_all_public
    from toolhub_servers.web.memo import Memo, MemoStatistics, open_memo
    from toolhub_servers.web.model import Reply
    from toolhub_servers.web.order import place_of
    from toolhub_servers.web.settings import WebSettings
    from toolhub_servers.web.statistics import WebStatistics
    from toolhub_servers.web.workers import offload

__all__ = [
    "BadStatus",
    "Forbidden",
    "Memo",
    "MemoStatistics",
    "NoWorker",
    "Reply",
    "TooCostly",
    "Unreachable",
    "Web",
    "WebError",
    "WebSettings",
    "WebStatistics",
    "WebTimeout",
    "check_all_public",
    "decode_text",
    "offload",
    "open_memo",
    "open_web",
    "place_of",
]
_HOMES = {
    "charset": ("decode_text",),
    "client": ("Web", "open_web"),
    "errors": ("BadStatus", "Forbidden", "NoWorker", "TooCostly", "Unreachable", "WebError", "WebTimeout"),
    "guard": ("check_all_public",),
    "memo": ("Memo", "MemoStatistics", "open_memo"),
    "model": ("Reply",),
    "order": ("place_of",),
    "settings": ("WebSettings",),
    "statistics": ("WebStatistics",),
    "workers": ("offload",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
