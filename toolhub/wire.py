"""How values and errors look on the task API. Used by both ends, so that a remote call fails like a local one."""

from __future__ import annotations

from typing import Any

from toolhub import errors
from toolhub.errors import CallError, ConfigError, ToolhubError, ToolNotFound
from toolhub.model import Json, ToolInfo

API_VERSION = "v1"
NDJSON = "application/x-ndjson"

STATUS: dict[type[ToolhubError], int] = {
    errors.ToolNotFound: 404,
    errors.TaskClosed: 410,
    errors.HubClosed: 503,
    errors.ConfigError: 422,
    errors.Unauthorized: 401,
    errors.MissingExtra: 501,
    errors.Overloaded: 429,
    errors.StartError: 502,
    errors.ServerGaveUp: 503,
    errors.CallTimeout: 504,
    errors.SessionLost: 502,
    errors.ProtocolViolation: 502,
    errors.CallError: 500,
    errors.ToolhubError: 500,
}
_BY_NAME = {kind.__name__: kind for kind in STATUS}


def status_of(exc: ToolhubError) -> int:
    """HTTP status of an error."""
    return next(STATUS[kind] for kind in type(exc).__mro__ if kind in STATUS)


def error_to_wire(exc: ToolhubError) -> Json:
    """``{"type", "message", ...}``; a CallError adds what it knows, first of all `sent`."""
    wire: Json = {"type": type(exc).__name__, "message": str(exc)}
    if isinstance(exc, CallError):
        wire |= exc.details()
    elif isinstance(exc, ToolNotFound):
        wire["near"] = list(exc.near)
    return wire


def error_from_wire(wire: Json) -> ToolhubError:
    """Rebuild the error; one of an unknown type becomes a plain ToolhubError."""
    fields: dict[str, Any] = dict(wire)
    kind = _BY_NAME.get(str(fields.pop("type", "")), ToolhubError)
    message = str(fields.pop("message", "unknown error"))
    if issubclass(kind, CallError):
        required: dict[str, Any] = {"timeout": 0.0} if kind is errors.CallTimeout else {}
        known = kind("", **required).details()
        return kind(message, **{name: value for name, value in fields.items() if name in known})
    if kind in (ToolNotFound, ConfigError, ToolhubError) or kind.__init__ is ToolhubError.__init__:
        return kind(message)
    return ToolhubError(message)


def tool_to_wire(tool: ToolInfo) -> Json:
    return {
        "server": tool.server,
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "raw": tool.raw,
    }


def tool_from_wire(wire: Json) -> ToolInfo:
    return ToolInfo(wire["server"], wire["name"], wire["description"], wire["input_schema"], wire.get("raw") or {})
