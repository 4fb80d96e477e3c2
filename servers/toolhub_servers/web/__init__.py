"""Reaching the web from many tasks at once: pooled, polite, bounded, cached, and never into the private network."""

from toolhub_servers.web.client import Web, open_web
from toolhub_servers.web.errors import BadStatus, Forbidden, Unreachable, WebError, WebTimeout
from toolhub_servers.web.model import Reply
from toolhub_servers.web.settings import WebSettings

__all__ = [
    "BadStatus",
    "Forbidden",
    "Reply",
    "Unreachable",
    "Web",
    "WebError",
    "WebSettings",
    "WebTimeout",
    "open_web",
]
