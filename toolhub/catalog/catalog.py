"""The tools of each server, and whether the server itself has confirmed them.

*Verified* tools were listed by the server itself since the hub started, per (server, environment). *Saved* tools were
listed by any server with the same description, perhaps before the hub started. They answer `tools/list` before a
process has started, and the server's next start confirms or corrects them. Both are removed when the server says that
its tools changed.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping

from toolhub.catalog.store import CatalogStore
from toolhub.config import ServerSpec
from toolhub.model import PREFETCH_META, Json, ToolInfo, ToolPolicy

# Entries beyond this number are dropped, oldest first. Tasks with servers of their own add entries all the time.
_MOST = 2000

_Tools = dict[str, ToolInfo]


class Catalog:
    """Tools by server and environment, shared by all tasks of a hub.

    key: identifies a server with one task's values filled in, so that different environments have different entries.
    store: saves answers for the next start of the hub; None: they are not saved.
    """

    def __init__(self, store: CatalogStore | None = None) -> None:
        self._store = store
        self._verified: dict[str, _Tools] = {}
        self._saved: dict[str, _Tools] = {}
        self._changing: set[str] = set()

    def get(self, key: str, spec: ServerSpec | None = None) -> list[ToolInfo] | None:
        """Return a copy of a server's tools in the server's order; None if they are not known.

        spec: the server's spec, to use saved tools too. Without it only verified tools are returned.
        """
        tools = self._known(key, spec)
        return None if tools is None else copy.deepcopy(list(tools.values()))

    def tools(self, key: str, spec: ServerSpec) -> Mapping[str, ToolInfo] | None:
        """Return the tools by name; they must not be changed. Another answer of the server is another object."""
        return self._known(key, spec)

    def put(self, key: str, spec: ServerSpec, wire: Iterable[Json]) -> list[ToolInfo]:
        """Store a copy of what `tools/list` answered; return the tools."""
        tools = [ToolInfo.from_wire(spec.name, tool) for tool in wire]
        listed = {tool.name: tool for tool in copy.deepcopy(tools)}
        saved = self._saved_tools(spec)
        if saved is not None and _are_equal(saved, listed):
            listed = saved  # keeps the order that readers have seen, because prompts are made from it
        else:
            self._save(spec, listed)
        _add(self._verified, key, listed)
        return tools

    def is_verified(self, key: str) -> bool:
        """Whether the server itself has listed its tools."""
        return key in self._verified

    def is_unverified(self, key: str, spec: ServerSpec) -> bool:
        """Whether readers get saved tools, so that the server should be asked when it has started."""
        return key not in self._verified and self._saved_tools(spec) is not None

    def is_outdated_by(self, key: str, spec: ServerSpec, wire: Iterable[Json]) -> bool:
        """Whether readers got other tools than `tools/list` answers now."""
        known = self._known(key, spec)
        return known is not None and not _are_equal(known, _by_name(spec, wire))

    def forget(self, key: str, spec: ServerSpec | None = None) -> None:
        """Remove a server's tools, because it said that they changed.

        Its later answers are not saved: a server that changes its tools may do so for each process differently.
        """
        self._verified.pop(key, None)
        if spec is None:
            return
        identity = _identity(spec)
        self._saved.pop(identity, None)
        self._changing.add(identity)
        if self._store is not None:
            self._store.remove(spec)

    def policy(self, key: str, spec: ServerSpec, tool: str) -> ToolPolicy:
        """Return what is declared about a tool: by the config, else by the server's verified annotations."""
        known = self._verified.get(key, {}).get(tool)
        hints = known.annotations if known else {}
        declared = spec.tools.policy.get(tool)
        read_only, idempotent = bool(hints.get("readOnlyHint")), bool(hints.get("idempotentHint"))
        prefetch = known.prefetch if known else ()
        if declared is None:
            return ToolPolicy(read_only, idempotent, prefetch=prefetch)
        return ToolPolicy(
            read_only if declared.read_only is None else declared.read_only,
            idempotent if declared.idempotent is None else declared.idempotent,
            declared.timeout_s,
            declared.speculative == "allow",
            () if declared.speculative == "deny" else prefetch,
        )

    def _known(self, key: str, spec: ServerSpec | None) -> _Tools | None:
        verified = self._verified.get(key)
        return self._saved_tools(spec) if verified is None and spec is not None else verified

    def _saved_tools(self, spec: ServerSpec) -> _Tools | None:
        identity = _identity(spec)
        saved = self._saved.get(identity)
        if saved is None and self._store is not None and identity not in self._changing:
            wire = self._store.read(spec)
            if wire is not None:
                saved = _by_name(spec, wire)
                _add(self._saved, identity, saved)
        return saved

    def _save(self, spec: ServerSpec, tools: _Tools) -> None:
        identity = _identity(spec)
        if identity in self._changing:
            return
        _add(self._saved, identity, tools)
        if self._store is not None:
            self._store.write(spec, [tool.raw for tool in tools.values()])


def with_declarations(spec: ServerSpec, tool: ToolInfo) -> ToolInfo:
    """Return the tool with the config's declarations in place of the server's annotations."""
    declared = spec.tools.policy.get(tool.name)
    if declared is None:
        return tool
    overrides = {"readOnlyHint": declared.read_only, "idempotentHint": declared.idempotent}
    hints = tool.annotations | {name: value for name, value in overrides.items() if value is not None}
    raw = tool.raw | {"annotations": hints} if hints else tool.raw
    if declared.speculative is not None:
        raw = _with_early_arguments(tool, raw, is_allowed=declared.speculative == "allow")
    return dataclasses.replace(tool, raw=raw) if raw is not tool.raw else tool


def _with_early_arguments(tool: ToolInfo, raw: Json, *, is_allowed: bool) -> Json:
    """Return the wire object that says with which arguments a client should announce a call: the required ones."""
    meta = raw.get("_meta") if isinstance(raw.get("_meta"), dict) else {}
    required = list(tool.prefetch or tool.required) if is_allowed else []
    if not required and PREFETCH_META not in (meta or {}):
        return raw
    others = {name: value for name, value in (meta or {}).items() if name != PREFETCH_META}
    return raw | {"_meta": others | ({PREFETCH_META: required} if required else {})}


def _identity(spec: ServerSpec) -> str:
    """Return the identity of a server. It is the same for all tasks, even if its environment names the task."""
    return f"{spec.name}:{spec.template_fingerprint}"


def _by_name(spec: ServerSpec, wire: Iterable[Json]) -> _Tools:
    return {tool["name"]: ToolInfo.from_wire(spec.name, tool) for tool in wire}


def _are_equal(one: _Tools, other: _Tools) -> bool:
    """Whether the tools are equal in any order. Some servers list them in a different order each time."""
    return {name: tool.raw for name, tool in one.items()} == {name: tool.raw for name, tool in other.items()}


def _add(known: dict[str, _Tools], name: str, tools: _Tools) -> None:
    known.pop(name, None)
    known[name] = tools
    if len(known) > _MOST:
        del known[next(iter(known))]
