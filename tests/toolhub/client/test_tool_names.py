"""The names under which clients and models see the tools of several servers."""

from __future__ import annotations

import re

import pytest

from toolhub.model import ToolInfo
from toolhub.tool_names import MAX_NAME, exposed_names, function_names

pytestmark = pytest.mark.quick


def tool(server: str, name: str) -> ToolInfo:
    return ToolInfo(server, name, None, {})


FIRST = [tool("a", "read"), tool("a", "write")]
MORE = [tool("b", "read"), tool("b", "search")]


def test_always_adding_a_server_renames_no_tool() -> None:
    before = exposed_names(FIRST, prefix="always")
    after = exposed_names([*MORE, *FIRST], prefix="always")
    assert list(before) == ["a__read", "a__write"]
    assert {name: after[name] for name in before} == before


def test_on_collision_names_stay_plain_while_they_are_unique() -> None:
    assert exposed_names(FIRST, prefix="collision") == {"read": FIRST[0], "write": FIRST[1]}


def test_on_collision_only_names_that_collide_are_qualified() -> None:
    assert list(exposed_names([*FIRST, *MORE], prefix="collision")) == ["a__read", "write", "b__read", "search"]


def test_on_collision_a_plain_name_never_hides_a_qualified_one() -> None:
    tools = [tool("a", "read"), tool("b", "read"), tool("c", "a__read")]
    exposed = exposed_names(tools, prefix="collision")
    assert len(exposed) == 3 and exposed["a__read"] is tools[0] and tools[2] in exposed.values()


def test_on_collision_no_server_gets_the_qualified_name_of_anothers_tool() -> None:
    """Calls may use qualified names always. A server could else name a tool so that it gets the calls of another's."""
    tools = [tool("evil", "files__read"), tool("files", "read")]
    assert exposed_names(tools, prefix="collision") == {"evil__files__read": tools[0], "read": tools[1]}


def test_never_the_first_servers_tool_has_the_name() -> None:
    exposed = exposed_names([*FIRST, *MORE], prefix="never")
    assert list(exposed) == ["read", "write", "search"]
    assert exposed["read"] is FIRST[0]


def test_long_names_are_shortened_and_stay_different() -> None:
    tools = [tool("a", "x" * 70), tool("a", "x" * 71), tool("s" * 60, "read"), tool("s" * 61, "read")]
    names = list(exposed_names(tools, prefix="collision"))
    assert len(set(names)) == 4 and max(map(len, names)) == MAX_NAME


def test_names_of_functions_have_only_the_allowed_characters_and_stay_different() -> None:
    tools = [tool("my server", "get.it"), tool("my server", "get it"), tool("my server", "get_it"), tool("x" * 70, "ö")]
    names = list(function_names(tools, prefix="always"))
    assert len(set(names)) == 4
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
