"""Which server a name or a URI of a client is for, where there are several. Pure rules, without I/O."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from toolhub.tool_names import SEPARATOR, Prefix, exposed_names, qualified

_EXPRESSION = re.compile(r"\{([^}]*)\}")


class Owned(NamedTuple):
    """A tool or a prompt: its server, and its name there."""

    server: str
    name: str


def callable_names(listed: Iterable[Owned], prefix: Prefix) -> dict[str, Owned]:
    """Map every name that a request may use to its owner: the listed ones, and `server__name`."""
    every = list(listed)
    return {qualified(one): one for one in every} | exposed_names(every, prefix=prefix)


def split_name(name: str, servers: Iterable[str]) -> Owned | None:
    """Read `server__name` where the server's list is not known; None if no server begins the name."""
    owner = max((one for one in servers if name.startswith(one + SEPARATOR)), key=len, default=None)
    return Owned(owner, name[len(owner) + len(SEPARATOR) :]) if owner is not None else None


def near_names(name: str, known: Mapping[str, Owned]) -> list[str]:
    """Return the names that a client may have meant: the same name at several servers first, then similar ones."""
    same = [exposed for exposed, one in known.items() if one.name == name]
    return same[:5] or difflib.get_close_matches(name, known, n=3)


def matches_template(uri: str, template: str) -> bool:
    """Whether a URI can come from a template of RFC 6570. `{+x}` and `{#x}` may contain slashes; others may not."""
    pattern, position = "", 0
    for expression in _EXPRESSION.finditer(template):
        pattern += re.escape(template[position : expression.start()])
        inner = expression.group(1)
        pattern += ".*" if inner[:1] in ("+", "#", "?", "&", "/") or inner.endswith("*") else "[^/?#]*"
        position = expression.end()
    return re.fullmatch(pattern + re.escape(template[position:]), uri) is not None
