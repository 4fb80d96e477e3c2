"""What changes in a request, and in its result, between a client and a server of different generations.

Both generations have the same tools, prompts and resources. They differ in the envelope: revision 2026-07-28 repeats in
each request who the client is, and says of each result what it is and how long it holds. Pure rules, without I/O. What
cannot be bridged is refused with a text that says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
)
from mcp_types.methods import CACHEABLE_METHODS
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from toolhub.channel.base import Refused
from toolhub.model import Json

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_ENVELOPE = {PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY, LOG_LEVEL_META_KEY}
_MODERN_PARAMS = {"inputResponses", "requestState"}
_MODERN_RESULT = {"resultType", "ttlMs", "cacheScope"}
# Only the modern generation has these, and nothing of the other one can stand for them.
_MODERN_ONLY = ("tasks/", "subscriptions/", "server/")
_HANDSHAKE_ONLY = ("tasks/", "resources/subscribe", "resources/unsubscribe")


def envelope_of(params: Mapping[str, Any] | None) -> Json:
    """Return `_meta` of a request."""
    meta = (params or {}).get("_meta")
    return meta if isinstance(meta, dict) else {}


def hello_of(params: Mapping[str, Any] | None) -> Json:
    """Return the params of `initialize` that say the same of a client as the envelope of its request."""
    meta = envelope_of(params)
    capabilities, info = meta.get(CLIENT_CAPABILITIES_META_KEY), meta.get(CLIENT_INFO_META_KEY)
    return {
        "protocolVersion": LATEST_HANDSHAKE_VERSION,
        "capabilities": capabilities if isinstance(capabilities, dict) else {},
        "clientInfo": info if isinstance(info, dict) else {"name": "unknown", "version": ""},
    }


def to_handshake(method: str, params: Mapping[str, Any] | None) -> Json | None:
    """Return the params for a server of the handshake era. Raises Refused."""
    if method.startswith(_MODERN_ONLY):
        raise Refused(METHOD_NOT_FOUND, f"the server speaks MCP only up to {LATEST_HANDSHAKE_VERSION}: no {method}")
    if params is None:
        return None
    kept = {key: value for key, value in params.items() if key not in _MODERN_PARAMS and key != "_meta"}
    meta = {key: value for key, value in envelope_of(params).items() if key not in _ENVELOPE}
    return {**kept, "_meta": meta} if meta else kept or None


def from_handshake(method: str, result: Json) -> Json:
    """Return the result for a client of revision 2026-07-28."""
    hints = {"ttlMs": 0, "cacheScope": "private"} if method in CACHEABLE_METHODS else {}
    return {"resultType": "complete", **hints, **result}


def to_modern(method: str, params: Mapping[str, Any] | None, hello: Json | None, log_level: str | None) -> Json:
    """Return the params for a server of revision 2026-07-28. hello: of the client. Raises Refused."""
    if method.startswith(_HANDSHAKE_ONLY):
        raise Refused(
            METHOD_NOT_FOUND, f"the server speaks only revision {LATEST_MODERN_VERSION} of MCP, which has no {method}"
        )
    said = hello or {}
    envelope = {
        PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION,
        CLIENT_INFO_META_KEY: said.get("clientInfo", {"name": "unknown", "version": ""}),
        CLIENT_CAPABILITIES_META_KEY: said.get("capabilities", {}),
    }
    if log_level is not None:
        envelope[LOG_LEVEL_META_KEY] = log_level
    return {**(params or {}), "_meta": {**envelope_of(params), **envelope}}


def from_modern(result: Json) -> Json:
    """Return a complete result for a client of the handshake era."""
    return {key: value for key, value in result.items() if key not in _MODERN_RESULT}


def wants_log(params: Mapping[str, Any] | None, level: Any) -> bool:
    """Whether a request of revision 2026-07-28 asks for log lines of this level. Without its asking it gets none."""
    least = envelope_of(params).get(LOG_LEVEL_META_KEY)
    return least in LEVELS and level in LEVELS and LEVELS.index(level) >= LEVELS.index(least)
