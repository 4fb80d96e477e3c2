"""Which server a name or a URI of a client is for, where there are several. Pure rules, without I/O."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from toolhub.tool_names import SEPARATOR, Prefix, exposed_names, qualified

_EXPRESSION = re.compile(r"\{([^{}]*)\}")
# The largest template and URI that are compared, which bounds the time.
_MOST_EXPRESSIONS, _LONGEST_URI = 16, 4096


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
    """Whether a URI can come from a template of RFC 6570. `{+x}` and `{#x}` may contain slashes; others may not.

    Not a regular expression: a server's template could make it try ways without end, and stop the hub.
    """
    expressions = list(_EXPRESSION.finditer(template))
    if len(expressions) > _MOST_EXPRESSIONS or len(uri) > _LONGEST_URI:
        return False
    places, position = {0}, 0  # all places of the URI up to which the template may have come
    for expression in expressions:
        places = _after_text(uri, template[position : expression.start()], places)
        inner = expression.group(1)
        takes_slashes = inner[:1] in ("+", "#", "?", "&", "/") or inner.endswith("*")
        places = _after_expression(uri, places, takes_slashes=takes_slashes)
        position = expression.end()
    return len(uri) in _after_text(uri, template[position:], places)


def _after_text(uri: str, text: str, places: set[int]) -> set[int]:
    return {place + len(text) for place in places if uri.startswith(text, place)}


def _after_expression(uri: str, places: set[int], *, takes_slashes: bool) -> set[int]:
    if takes_slashes or not places:
        return set(range(min(places), len(uri) + 1)) if places else places
    reached, is_within = set(), False
    for place in range(len(uri) + 1):
        is_within = place in places or (is_within and uri[place - 1] not in "/?#")
        if is_within:
            reached.add(place)
    return reached
