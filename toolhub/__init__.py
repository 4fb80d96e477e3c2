"""toolhub keeps the tools of long-running research agents alive.

`Hub` runs them in this process (extra `hub`); `connect()` reaches a hub that runs elsewhere.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from toolhub.config import Config, ServerSpec, load_config, parse_config
from toolhub.errors import (
    CallError,
    CallTimeout,
    ConfigError,
    HubClosed,
    MissingExtra,
    Overloaded,
    ProtocolViolation,
    ServerGaveUp,
    SessionLost,
    StartError,
    TaskClosed,
    ToolhubError,
    ToolNotFound,
    Unauthorized,
)
from toolhub.model import Result, ToolInfo

if TYPE_CHECKING:
    from toolhub.hub import Hub as Hub
    from toolhub.scope import TaskScope as TaskScope

__version__ = "0.1.0"
__all__ = [
    "CallError",
    "CallTimeout",
    "Config",
    "ConfigError",
    "Hub",
    "HubClosed",
    "MissingExtra",
    "Overloaded",
    "ProtocolViolation",
    "Result",
    "ServerGaveUp",
    "ServerSpec",
    "SessionLost",
    "StartError",
    "TaskClosed",
    "TaskScope",
    "ToolInfo",
    "ToolNotFound",
    "ToolhubError",
    "Unauthorized",
    "connect",
    "load_config",
    "parse_config",
]

# The hub imports `mcp`; the thin client must work beside any version of it, so these names are imported when used.
_LAZY = {"Hub": "toolhub.hub", "TaskScope": "toolhub.scope", "connect": "toolhub.client"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'toolhub' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_LAZY[name]), name)
    except ImportError as exc:
        if name == "connect":
            raise
        raise MissingExtra("hub", f"toolhub.{name}") from exc
