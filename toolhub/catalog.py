"""What each server offers: fetched once per (server, environment), forgotten when the server says that it changed."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable

from toolhub.config import ServerSpec
from toolhub.model import Json, ToolInfo, ToolPolicy


class Catalog:
    """Tools by server and environment; shared by every task of a hub."""

    def __init__(self) -> None:
        self._tools: dict[str, dict[str, ToolInfo]] = {}

    def get(self, key: str) -> list[ToolInfo] | None:
        """Return a server's tools in its own order, each reader its own copy, or None when they are not known yet."""
        tools = self._tools.get(key)
        return None if tools is None else copy.deepcopy(list(tools.values()))

    def put(self, key: str, spec: ServerSpec, wire: Iterable[Json]) -> list[ToolInfo]:
        """Remember what `tools/list` answered, as a copy of its own; returns the tools."""
        tools = [ToolInfo.from_wire(spec.name, tool) for tool in wire]
        self._tools[key] = {tool.name: tool for tool in copy.deepcopy(tools)}
        return tools

    def forget(self, key: str) -> None:
        """The server changed its tools."""
        self._tools.pop(key, None)

    def policy(self, key: str, spec: ServerSpec, tool: str) -> ToolPolicy:
        """What is declared about a tool: the server's annotations, overruled by the config."""
        known = self._tools.get(key, {}).get(tool)
        hints = known.annotations if known else {}
        declared = spec.tools.policy.get(tool)
        read_only, idempotent = bool(hints.get("readOnlyHint")), bool(hints.get("idempotentHint"))
        if declared is None:
            return ToolPolicy(read_only, idempotent)
        return ToolPolicy(
            read_only if declared.read_only is None else declared.read_only,
            idempotent if declared.idempotent is None else declared.idempotent,
            declared.timeout_s,
        )


def with_declarations(spec: ServerSpec, tool: ToolInfo) -> ToolInfo:
    """The tool with the config's word in place of the server's annotations."""
    declared = spec.tools.policy.get(tool.name)
    if declared is None:
        return tool
    said = {"readOnlyHint": declared.read_only, "idempotentHint": declared.idempotent}
    hints = tool.annotations | {name: value for name, value in said.items() if value is not None}
    return dataclasses.replace(tool, raw=tool.raw | {"annotations": hints}) if hints else tool
