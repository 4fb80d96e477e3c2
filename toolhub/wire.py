"""The wire format of values and errors of the task API. Both ends use it, so a remote call fails like a local one."""

from __future__ import annotations

from toolhub import errors
from toolhub.errors import ToolhubError
from toolhub.model import Json, ToolInfo

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
    errors.CircuitOpen: 503,
    errors.CallTimeout: 504,
    errors.SessionLost: 502,
    errors.NotRecorded: 404,
    errors.ProtocolViolation: 502,
    errors.CallError: 500,
    errors.ToolhubError: 500,
}
_BY_NAME = {kind.__name__: kind for kind in STATUS}
_REQUIRED: dict[type[ToolhubError], Json] = {errors.CallTimeout: {"timeout": 0.0}, errors.MissingExtra: {"feature": ""}}


def status_of(exc: ToolhubError) -> int:
    """Return the HTTP status of an error."""
    return next(STATUS[kind] for kind in type(exc).__mro__ if kind in STATUS)


def error_to_wire(exc: ToolhubError) -> Json:
    """Return ``{"type", "message", "help", ...}`` with all attributes of the error, such as a CallError's `sent`."""
    return {"type": type(exc).__name__, "message": str(exc), "help": exc.help_command, **vars(exc)}


def error_from_wire(wire: Json) -> ToolhubError:
    """Rebuild an error. An unknown type becomes a plain ToolhubError, and unknown fields are dropped."""
    kind = _BY_NAME.get(str(wire.get("type")), ToolhubError)
    exc = kind("", **_REQUIRED.get(kind, {}))
    exc.args = (str(wire.get("message", "unknown error")),)
    for name in vars(exc):
        if name in wire:
            value = wire[name]
            setattr(exc, name, tuple(value) if isinstance(value, list) else value)
    return exc


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
