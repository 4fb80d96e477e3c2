"""Every server that comes with toolhub, by its entry point."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import toolhub_servers
from mcp.server import MCPServer

from toolhub.extensions import builtin_servers, find_builtin

SERVERS = Path(toolhub_servers.__file__).parent
# Without these a factory refuses to make the server.
NEEDED: dict[str, dict[str, Any]] = {
    name: {"backends": []} for name in ("google_search", "search_and_scrape_webpage", "sogou_search")
}


ALL = sorted(name for name, target in builtin_servers().items() if target.startswith("toolhub_servers."))


def module_of(name: str) -> ModuleType:
    return importlib.import_module(find_builtin(name)[0])


def factory(name: str) -> Callable[..., MCPServer]:
    create: Callable[..., MCPServer] = module_of(name).create_server
    return create


def make(name: str, folder: Path) -> MCPServer:
    """Return the server, made with nothing that it can do without. folder: for a Chromium that is never started."""
    if name != "browser":
        return factory(name)(**NEEDED.get(name, {}))
    (chromium := folder / "chromium").touch(0o755)
    return factory(name)(executable=str(chromium))
