"""Translate server entries of other programs into toolhub's keys.

Desktop clients and editors list their servers under `mcpServers`. Keys for their user interface are ignored. Keys with
a meaning here are translated. If an entry also has toolhub's own key, that key is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolhub.config.explain import known_keys
from toolhub.config.problems import Key, Problem, kind_of, unknown_key
from toolhub.config.rules import transport_of
from toolhub.config.server import ServerSpec

_IGNORED = {"autoApprove", "alwaysAllow", "icon", "name"}
_TRANSLATED = {"enabled", "timeout", "transportType", "disabledTools", "enabledTools"}
_TRANSPORT_KEYS = ("transport", "type", "transportType")
# Some clients write seconds, others milliseconds. A larger number is taken as milliseconds.
_LARGEST_SECONDS = 1000


@dataclass(slots=True)
class Entry:
    """One server in toolhub's keys, its problems, and the file's names of the translated keys."""

    data: dict[Any, Any]
    problems: list[Problem] = field(default_factory=list)
    renamed: dict[Key, Key] = field(default_factory=dict)

    def key_in_file(self, key: Key) -> Key:
        """Return a key as the file has it."""
        if key == ("name",):
            return ()
        matches = (old + key[len(new) :] for new, old in self.renamed.items() if key[: len(new)] == new)
        return next(matches, key)

    def set_default(self, new: Key, old: str, value: Any) -> None:
        """Set the key `new` from the file's key `old`, unless the file has `new` too."""
        section = self.data
        for part in new[:-1]:
            section[part] = section = dict(section.get(part) or {})
        if new[-1] not in section:
            section[new[-1]] = value
            self.renamed[new] = (old,)


def read_entry(raw: Mapping[Any, Any], *, is_desktop: bool) -> Entry:
    """Read one server's entry. `type` is accepted for `transport` everywhere."""
    entry = Entry(dict(raw))
    _refuse_unknown(entry, {"type"} | (_IGNORED | _TRANSLATED if is_desktop else set()))
    _settle_transport(entry)
    if is_desktop:
        _translate(entry)
    return entry


def _refuse_unknown(entry: Entry, extra: set[str]) -> None:
    known = {*known_keys(ServerSpec), *extra}
    for name in [name for name in entry.data if name not in known]:
        del entry.data[name]
        entry.problems.append(Problem((str(name),), unknown_key(name, sorted(known))))


def _settle_transport(entry: Entry) -> None:
    given = {name: entry.data.pop(name) for name in _TRANSPORT_KEYS if name in entry.data}
    for name, value in given.items():
        entry.set_default(("transport",), name, value)
        if transport_of({"transport": value}) != transport_of(entry.data):
            entry.problems.append(Problem((name,), f"contradicts '{next(iter(given))}'"))


def _translate(entry: Entry) -> None:
    for name in _IGNORED:
        entry.data.pop(name, None)
    given = {name: entry.data.pop(name) for name in _TRANSLATED if name in entry.data}
    if "enabled" in given:
        _translate_enabled(entry, given["enabled"])
    timeout = given.get("timeout")
    if isinstance(timeout, int | float) and not isinstance(timeout, bool):
        seconds = timeout / 1000 if timeout > _LARGEST_SECONDS else timeout
        entry.set_default(("call_timeout_s",), "timeout", seconds)
    tools = entry.data.get("tools")
    if tools is None or isinstance(tools, Mapping):
        _translate_tools(entry, given)


def _translate_enabled(entry: Entry, enabled: object) -> None:
    if isinstance(enabled, bool):
        entry.set_default(("disabled",), "enabled", not enabled)
    else:
        entry.problems.append(Problem(("enabled",), f"expected true or false, found {kind_of(enabled)}"))


def _translate_tools(entry: Entry, given: Mapping[str, Any]) -> None:
    for name, ours in (("disabledTools", "deny"), ("enabledTools", "allow")):
        if given.get(name) is not None:
            entry.set_default(("tools", ours), name, given[name])
