"""toolhub keeps the tools of long-running research agents alive.

`Hub` runs them in this process (extra `hub`); `connect()` reaches a hub that runs elsewhere and needs no extra.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from toolhub.errors import (
    CallError,
    CallTimeout,
    CircuitOpen,
    ConfigError,
    HubClosed,
    MissingExtra,
    Overloaded,
    ProtocolViolation,
    SessionLost,
    StartError,
    TaskClosed,
    ToolhubError,
    ToolNotFound,
    Unauthorized,
)

if TYPE_CHECKING:
    from toolhub.client import RemoteHub as RemoteHub
    from toolhub.client import RemoteTask as RemoteTask
    from toolhub.client import connect as connect
    from toolhub.config import Config as Config
    from toolhub.config import ServerSpec as ServerSpec
    from toolhub.config import load_config as load_config
    from toolhub.config import parse_config as parse_config
    from toolhub.hub import Hub as Hub
    from toolhub.model import Result as Result
    from toolhub.model import ToolInfo as ToolInfo
    from toolhub.task import HubTask as HubTask

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
    "RemoteHub",
    "RemoteTask",
    "Result",
    "CircuitOpen",
    "ServerSpec",
    "SessionLost",
    "StartError",
    "TaskClosed",
    "HubTask",
    "ToolInfo",
    "ToolNotFound",
    "ToolhubError",
    "Unauthorized",
    "connect",
    "load_config",
    "parse_config",
]

# The hub imports `mcp`, pydantic and more; the thin client has to work without them and beside any version of them.
# So these names are imported when they are used. Without them `import toolhub` takes a few milliseconds.
_LAZY = {
    "Config": "toolhub.config",
    "Hub": "toolhub.hub",
    "RemoteHub": "toolhub.client",
    "RemoteTask": "toolhub.client",
    "Result": "toolhub.model",
    "ServerSpec": "toolhub.config",
    "HubTask": "toolhub.task",
    "ToolInfo": "toolhub.model",
    "connect": "toolhub.client",
    "load_config": "toolhub.config",
    "parse_config": "toolhub.config",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'toolhub' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_LAZY[name]), name)
    except ImportError as exc:
        if _LAZY[name] == "toolhub.client":
            raise
        raise MissingExtra("hub", f"toolhub.{name}") from exc
