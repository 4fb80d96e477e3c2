"""Searching the web or a folder: one interface, several services behind it, tried in order."""

from toolhub_servers.search.chain import Search
from toolhub_servers.search.errors import SearchFailed, ServiceRefused
from toolhub_servers.search.model import Hit, Query, Results, SearchBackend
from toolhub_servers.search.settings import SearchSettings, read_settings

__all__ = [
    "Hit",
    "Query",
    "Results",
    "Search",
    "SearchBackend",
    "SearchFailed",
    "SearchSettings",
    "ServiceRefused",
    "read_settings",
]
