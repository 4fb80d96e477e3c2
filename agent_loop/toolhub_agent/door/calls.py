"""The tool calls that an answer asks for, so that a call of the hub can be known as one of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolhub_agent.door.chain import digest_of
from toolhub_agent.model import Json
from toolhub_agent.protocol.arguments import read_arguments
from toolhub_agent.protocol.xml import XmlReader

_TAG = "<use_mcp_tool>"
# No answer asks for more.
MOST = 128


@dataclass(frozen=True, slots=True)
class Wanted:
    """name: the tool's, or a function's whose end that is (agents put their own prefix before it)."""

    name: str
    server: str
    arguments: bytes
    """Their hash."""

    def may_be(self, tool: str) -> bool:
        """Cannot tell `a-search` from `search` of a server `a`; nobody has to."""
        return self.name == tool or (self.name.endswith(tool) and not self.name[-len(tool) - 1].isalnum())


def wanted_in(text: str, calls: Sequence[Json]) -> tuple[Wanted, ...]:
    """Native calls, else MiroFlow's XML in the text."""
    try:
        return tuple(_native(call) for call in calls[:MOST]) if calls else _xml(text)
    except ModuleNotFoundError:
        return ()  # arguments that only json-repair could read, where the extra `agent` is not installed


def _xml(text: str) -> tuple[Wanted, ...]:
    if _TAG not in text:
        return ()
    reader = XmlReader()
    found = [*reader.feed(text)]
    reader.close()
    thought = set(reader.take_withdrawn())
    return tuple(
        Wanted(call.tool, call.server, arguments_digest(call.arguments)) for call in found if call.index not in thought
    )[:MOST]


def arguments_digest(arguments: Mapping[str, Any]) -> bytes:
    """The same however they are ordered, and with or without what is null."""
    given = {name: value for name, value in arguments.items() if value is not None}
    return digest_of(json.dumps(given, sort_keys=True, default=str).encode())


def _native(call: Json) -> Wanted:
    function = call.get("function") or {}
    arguments, _ = read_arguments(str(function.get("arguments") or ""))
    return Wanted(str(function.get("name") or ""), "", arguments_digest(arguments))
