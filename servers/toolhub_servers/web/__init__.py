"""Reaching the web from many tasks at once: pooled, polite, bounded, cached, and never into the private network."""

from toolhub_servers.web.charset import decode_text
from toolhub_servers.web.client import Web, open_web
from toolhub_servers.web.errors import BadStatus, Forbidden, TooCostly, Unreachable, WebError, WebTimeout
from toolhub_servers.web.memo import Memo, MemoStatistics, open_memo
from toolhub_servers.web.model import Reply
from toolhub_servers.web.offload import offload
from toolhub_servers.web.settings import WebSettings
from toolhub_servers.web.statistics import WebStatistics

__all__ = [
    "BadStatus",
    "Forbidden",
    "Memo",
    "MemoStatistics",
    "Reply",
    "TooCostly",
    "Unreachable",
    "Web",
    "WebError",
    "WebSettings",
    "WebStatistics",
    "WebTimeout",
    "decode_text",
    "offload",
    "open_memo",
    "open_web",
]
