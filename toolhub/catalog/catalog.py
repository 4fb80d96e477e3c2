"""What each server offers, and how sure that is.

*Verified* is what the server itself said in this hub's life, per (server, environment). *Kept* is what any server of
the same description said last, in this hub's life or an earlier one's: it answers `tools/list` before a process is up,
and the server's next start confirms or corrects it. Both are forgotten when the server says that its tools changed.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable

from toolhub.catalog.store import CatalogStore
from toolhub.config import ServerSpec
from toolhub.model import Json, ToolInfo, ToolPolicy

# Tasks that bring servers of their own come and go; what is dropped here is asked for again.
_MOST = 2000

_Tools = dict[str, ToolInfo]


class Catalog:
    """Tools by server and environment; shared by every task of a hub.

    key: names a server with one task's values filled in, so that no two environments are mixed up.
    store: where answers are kept between two lives of the hub; None keeps them for this one.
    """

    def __init__(self, store: CatalogStore | None = None) -> None:
        self._store = store
        self._verified: dict[str, _Tools] = {}
        self._kept: dict[str, _Tools] = {}
        self._changing: set[str] = set()

    def get(self, key: str, spec: ServerSpec | None = None) -> list[ToolInfo] | None:
        """Return a server's tools in its own order, each reader its own copy, or None when they are not known.

        spec: the server's, for what is kept; without it only verified tools are returned.
        """
        tools = self._known(key, spec)
        return None if tools is None else copy.deepcopy(list(tools.values()))

    def put(self, key: str, spec: ServerSpec, wire: Iterable[Json]) -> list[ToolInfo]:
        """Remember what `tools/list` answered, as a copy of its own; returns the tools."""
        tools = [ToolInfo.from_wire(spec.name, tool) for tool in wire]
        said = {tool.name: tool for tool in copy.deepcopy(tools)}
        kept = self._kept_tools(spec)
        if kept is not None and _alike(kept, said):
            said = kept  # the order that readers have seen stays: prompts are made from it
        else:
            self._keep(spec, said)
        _remember(self._verified, key, said)
        return tools

    def is_unverified(self, key: str, spec: ServerSpec) -> bool:
        """Whether readers are given what is kept, so that the server itself should be asked once it is up."""
        return key not in self._verified and self._kept_tools(spec) is not None

    def is_outdated_by(self, key: str, spec: ServerSpec, wire: Iterable[Json]) -> bool:
        """Whether readers were given something else than what `tools/list` answers now."""
        known = self._known(key, spec)
        return known is not None and not _alike(known, _by_name(spec, wire))

    def forget(self, key: str, spec: ServerSpec | None = None) -> None:
        """The server changed its tools. What a server that does so says in between is not kept: it may hold for one
        process only."""
        self._verified.pop(key, None)
        if spec is None:
            return
        identity = _identity(spec)
        self._kept.pop(identity, None)
        self._changing.add(identity)
        if self._store is not None:
            self._store.remove(spec)

    def policy(self, key: str, spec: ServerSpec, tool: str) -> ToolPolicy:
        """What is declared about a tool: the server's annotations once verified, overruled by the config."""
        known = self._verified.get(key, {}).get(tool)
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

    def _known(self, key: str, spec: ServerSpec | None) -> _Tools | None:
        verified = self._verified.get(key)
        return self._kept_tools(spec) if verified is None and spec is not None else verified

    def _kept_tools(self, spec: ServerSpec) -> _Tools | None:
        identity = _identity(spec)
        kept = self._kept.get(identity)
        if kept is None and self._store is not None and identity not in self._changing:
            wire = self._store.read(spec)
            if wire is not None:
                kept = _by_name(spec, wire)
                _remember(self._kept, identity, kept)
        return kept

    def _keep(self, spec: ServerSpec, tools: _Tools) -> None:
        identity = _identity(spec)
        if identity in self._changing:
            return
        _remember(self._kept, identity, tools)
        if self._store is not None:
            self._store.write(spec, [tool.raw for tool in tools.values()])


def with_declarations(spec: ServerSpec, tool: ToolInfo) -> ToolInfo:
    """The tool with the config's word in place of the server's annotations."""
    declared = spec.tools.policy.get(tool.name)
    if declared is None:
        return tool
    said = {"readOnlyHint": declared.read_only, "idempotentHint": declared.idempotent}
    hints = tool.annotations | {name: value for name, value in said.items() if value is not None}
    return dataclasses.replace(tool, raw=tool.raw | {"annotations": hints}) if hints else tool


def _identity(spec: ServerSpec) -> str:
    """The same for every task, even when its environment names the task."""
    return f"{spec.name}:{spec.template_fingerprint}"


def _by_name(spec: ServerSpec, wire: Iterable[Json]) -> _Tools:
    return {tool["name"]: ToolInfo.from_wire(spec.name, tool) for tool in wire}


def _alike(one: _Tools, other: _Tools) -> bool:
    """In whatever order: some servers list their tools in another one each time."""
    return {name: tool.raw for name, tool in one.items()} == {name: tool.raw for name, tool in other.items()}


def _remember(known: dict[str, _Tools], name: str, tools: _Tools) -> None:
    known.pop(name, None)
    known[name] = tools
    if len(known) > _MOST:
        del known[next(iter(known))]
