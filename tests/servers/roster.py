"""Every server that comes with toolhub, found where it is, so that none is forgotten by a test."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import toolhub_servers
from mcp.server import MCPServer

SERVERS = Path(toolhub_servers.__file__).parent
# Without these a factory refuses to make the server.
NEEDED: dict[str, dict[str, Any]] = {
    name: {"backends": []} for name in ("google_search", "search_and_scrape_webpage", "sogou_search")
}


def _names() -> Iterator[str]:
    for module in pkgutil.iter_modules([str(SERVERS)]):
        if not module.name.startswith("_"):
            if hasattr(importlib.import_module(f"toolhub_servers.{module.name}"), "create_server"):
                yield module.name


ALL = list(_names())


def factory(name: str) -> Callable[..., MCPServer]:
    create: Callable[..., MCPServer] = importlib.import_module(f"toolhub_servers.{name}").create_server
    return create


def make(name: str, folder: Path) -> MCPServer:
    """Return the server, made with nothing that it can do without. folder: for a Chromium that is never started."""
    if name != "browser":
        return factory(name)(**NEEDED.get(name, {}))
    (chromium := folder / "chromium").touch(0o755)
    return factory(name)(executable=str(chromium))
