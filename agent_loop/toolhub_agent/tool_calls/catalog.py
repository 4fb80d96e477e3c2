"""The tools of one agent: their order, names for native calls, early starts, and corrections of wrong names.

Each agent has its own catalog, because two agents may have tools of the same name on different servers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolhub_agent.types import Json

SUB_AGENT_PREFIX = "agent-"
_UNKNOWN_SERVER = "unknown"
# The API allows only these characters in a function's name, and no longer names.
_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME_CHARS = 64
# Names that models use because they were trained with such a tool.
_ALIASES = {"python": "run_python_code", "python_code": "run_python_code"}
# Argument names that models confuse: tool -> its argument -> what models also write.
_RENAMED: dict[str, dict[str, tuple[str, ...]]] = {
    "scrape_and_extract_info": {"info_to_extract": ("description", "introduction")},
    "run_python_code": {"code_block": ("code",)},
}
_DEFAULTS = {"run_python_code": {"sandbox_id": "default"}}


@dataclass(frozen=True, slots=True)
class ToolEntry:
    """One tool as its server describes it. function: its name in the chat completions API."""

    server: str
    name: str
    function: str
    description: str | None = None
    schema: Json = field(default_factory=dict)
    read_only: bool = False
    prefetch: frozenset[str] = frozenset()
    """The arguments with which its work can begin before the call is complete."""


class ToolCatalog:
    """The tools of one agent. Made by `ToolCatalog.of`. It does not change afterwards.

    catalog = ToolCatalog.of(await HubTools(task).get_all_tool_definitions(), hidden=["files/delete"])
    request["tools"] = catalog.native_tools()
    """

    def __init__(self, servers: Mapping[str, tuple[ToolEntry, ...]], read_only: frozenset[str] = frozenset()) -> None:
        self.servers = servers
        self._read_only = read_only
        self._tools = {(entry.server, entry.name): entry for entries in servers.values() for entry in entries}
        self._functions = {entry.function: entry for entry in self._tools.values()}
        self._servers_with: dict[str, list[str]] = {}
        for server, tool in self._tools:
            self._servers_with.setdefault(tool, []).append(server)

    def __repr__(self) -> str:
        return f"<ToolCatalog {len(self._tools)} tools of {len(self.servers)} servers>"

    @classmethod
    def of(
        cls, definitions: Iterable[Json], *, read_only: Iterable[str] = (), hidden: Iterable[str] = ()
    ) -> ToolCatalog:
        """Read `ToolSource.get_all_tool_definitions()`. A server that could not be asked has no tools.

        read_only: further `server/tool` besides those that declare it. hidden: `server/tool` that are left out.
        """
        read_only, hidden = frozenset(read_only), frozenset(hidden)
        servers: dict[str, tuple[ToolEntry, ...]] = {}
        taken: set[str] = set()
        for definition in definitions:
            server = definition["name"]
            entries = {
                tool["name"]: _entry(server, tool, read_only, taken)
                for tool in definition.get("tools", ())
                if "name" in tool and f"{server}/{tool['name']}" not in hidden
            }
            servers[server] = tuple(entries.values())
        return cls(servers, read_only)

    def find(self, server: str, tool: str) -> ToolEntry | None:
        return self._tools.get((server, tool))

    def servers_with(self, tool: str) -> list[str]:
        return list(self._servers_with.get(tool, ()))

    def native_tools(self) -> list[Json]:
        """The `tools` field of a chat completions request."""
        return [_native(entry) for entry in self._tools.values()]

    def split(self, function: str) -> tuple[str, str]:
        """(server, tool) of a function's name. An unknown name is split at its last `-`, as in MiroFlow."""
        if (entry := self._functions.get(function)) is not None:
            return entry.server, entry.name
        server, dash, tool = function.rpartition("-")
        return (server, tool) if dash else (_UNKNOWN_SERVER, function)

    def is_read_only(self, server: str, tool: str) -> bool:
        entry = self.find(server, tool)
        return f"{server}/{tool}" in self._read_only if entry is None else entry.read_only

    def is_independent(self, server: str, tool: str) -> bool:
        """Whether its calls may overlap: they change nothing, or each has a sub-agent of its own."""
        return self.is_read_only(server, tool) or server.startswith(SUB_AGENT_PREFIX)

    def correct(self, server: str, tool: str, arguments: Json) -> tuple[str, str, Json]:
        """What the model most likely meant: the only server that has the tool, and the tool's real argument names."""
        server, tool = self._meant(server, tool)
        return server, tool, self._corrected(server, tool, arguments)

    def _meant(self, server: str, tool: str) -> tuple[str, str]:
        alias = _ALIASES.get(tool, tool)
        for name in (tool, alias):
            if (server, name) in self._tools:
                return server, name
        for name in (tool, alias):
            if len(servers := self.servers_with(name)) == 1:
                return servers[0], name
        return server, tool

    def _corrected(self, server: str, tool: str, arguments: Json) -> Json:
        entry = self.find(server, tool)
        accepted = entry.schema.get("properties") if entry else None
        arguments = dict(arguments)
        for name, others in _RENAMED.get(tool, {}).items():
            written = next((other for other in others if other in arguments), None)
            if written is not None and name not in arguments and _accepts(accepted, name, not_=written):
                arguments[name] = arguments.pop(written)
        for name, value in _DEFAULTS.get(tool, {}).items():
            if _accepts(accepted, name):
                arguments.setdefault(name, value)
        return arguments


def _accepts(accepted: Any, name: str, *, not_: str = "") -> bool:
    """Whether the tool's schema accepts the argument. A schema without properties accepts every argument."""
    return not isinstance(accepted, Mapping) or (name in accepted and not_ not in accepted)


def _entry(server: str, tool: Json, read_only: frozenset[str], taken: set[str]) -> ToolEntry:
    name, schema, hints = tool["name"], tool.get("schema"), tool.get("annotations")
    return ToolEntry(
        server,
        name,
        _function_name(server, name, taken),
        tool.get("description"),
        schema if isinstance(schema, dict) else {},
        f"{server}/{name}" in read_only or (isinstance(hints, Mapping) and hints.get("readOnlyHint") is True),
        frozenset(tool.get("prefetch", ())),
    )


def _function_name(server: str, tool: str, taken: set[str]) -> str:
    """`<server>-<tool>`; if that is not valid or not unique, it ends with a digest of both."""
    plain = f"{server}-{tool}"
    name = _NOT_ALLOWED.sub("_", plain)
    if name != plain or len(name) > _MAX_NAME_CHARS or name in taken:
        digest = hashlib.sha256(f"{server}/{tool}".encode()).hexdigest()[:8]
        name = f"{name[: _MAX_NAME_CHARS - 9]}_{digest}"
    taken.add(name)
    return name


def _native(entry: ToolEntry) -> Json:
    return {
        "type": "function",
        "function": {
            "name": entry.function,
            "description": entry.description or "",
            "parameters": entry.schema or {"type": "object", "properties": {}},
        },
    }
