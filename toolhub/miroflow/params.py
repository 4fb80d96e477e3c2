"""Server parameters as MiroFlow configs hold them, turned into server entries for the hub.

They are read by their attributes, so that those of any version of the `mcp` SDK will do, and the SDK need not be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from toolhub.model import Json

PLAYWRIGHT = "playwright"
"""The one server whose state has always lived between calls."""
# First runs of npx and uvx download packages, and importing heavy SDKs takes long when many agents start at once.
_START_S = 120.0
# The manager that this one replaces started a process for every call, so it never gave a server up for long.
_RESTART = {"max_deaths": 20, "cooldown_s": 5}
_STDIO_FIELDS = ("command", "args", "env", "cwd")


@dataclass(frozen=True, slots=True)
class Setting:
    """What a manager adds to every server's own parameters."""

    timeout: float
    instances: int
    cwd: str | None = None
    task_id: str | None = None


def entry_of(server: str, params: Any, setting: Setting) -> Json:
    """Return the hub's entry for a server.

    Raises TypeError, worded as `ToolManager` always has, for parameters of an unknown kind. Whether the hub can use the
    entry it says itself.
    """
    entry = _reach(params)
    if entry is None:
        raise TypeError(f"Unknown server params type for {server}: {type(params)}")
    if "command" in entry:
        entry = _stdio(entry, setting)
    is_browser = server == PLAYWRIGHT
    entry |= {
        "call_timeout_s": setting.timeout,
        "start_timeout_s": _START_S,
        "stateful": is_browser,
        "restart": _RESTART,
        "instances": 1 if is_browser else setting.instances,
    }
    return {name: escape(value) for name, value in entry.items()}


def _reach(params: Any) -> Json | None:
    """How to reach the server, or None when this is not a kind of parameters."""
    if isinstance(params, str):
        return _remote(params) if params.startswith(("http://", "https://")) else None
    if isinstance(params, Mapping):
        return _mapped(params)
    if isinstance(getattr(params, "command", None), str):
        return {name: value for name in _STDIO_FIELDS if (value := getattr(params, name, None)) is not None}
    if isinstance(url := getattr(params, "url", None), str):
        kind = "sse" if "sse" in type(params).__name__.lower() else "http"
        return {"url": url, "transport": kind, "headers": dict(getattr(params, "headers", None) or {})}
    return None


def _mapped(params: Mapping[str, Any]) -> Json | None:
    given = {name: value for name, value in params.items() if value is not None}
    if isinstance(given.get("command"), str):
        return {name: given[name] for name in _STDIO_FIELDS if name in given}
    if isinstance(url := given.get("url"), str):
        kind = given.get("transport") or given.get("type")
        return _remote(url) | ({"transport": kind} if kind else {}) | {"headers": dict(given.get("headers") or {})}
    return None


def _remote(url: str) -> Json:
    """A bare address has always meant SSE; only the usual path of streamable HTTP means that."""
    is_streamable = urlsplit(url).path.rstrip("/").endswith("/mcp")
    return {"url": url, "transport": "http" if is_streamable else "sse"}


def _stdio(entry: Json, setting: Setting) -> Json:
    """The environment without unset variables, and the directory a child of the agent would have."""
    env = {name: str(value) for name, value in dict(entry.get("env") or {}).items() if value is not None}
    if setting.task_id is not None:
        env["TASK_ID"] = setting.task_id
    cwd = entry.get("cwd") or setting.cwd
    return {
        "command": entry["command"],
        "args": [str(arg) for arg in entry.get("args") or ()],
        "env": env,
    } | ({"cwd": str(cwd)} if cwd else {})


def escape(value: Any) -> Any:
    """Hide `${` from the hub, which would read it as a reference to its own environment."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, list):
        return [escape(item) for item in value]
    if isinstance(value, dict):
        return {name: escape(item) for name, item in value.items()}
    return value
