"""Which calls are the same: equal as JSON, kind of number included; what is not JSON equals nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from equal_calls import ACT, READ, SET, AServer
from hypothesis import given
from hypothesis import strategies as st
from in_memory_hub import a_call, a_spec

from toolhub.layers.cache_key import coalesce_scope, key_of, may_write

pytestmark = pytest.mark.quick

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3))
ARGUMENTS = st.dictionaries(st.text(), VALUES, max_size=3)


def key(arguments: Any, tool: str = "read", server: AServer | None = None, *more: object) -> str | None:
    return key_of(replace(a_call(tool), arguments=arguments), server or AServer(), "hub", *more)


def structure(value: Any) -> Any:
    """Something that is equal exactly for the same JSON."""
    if isinstance(value, dict):
        return {name: structure(member) for name, member in value.items()}
    if isinstance(value, list):
        return [structure(member) for member in value]
    return type(value), repr(value)


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: reordered(value[name]) for name in reversed(value)}
    return [reordered(member) for member in value] if isinstance(value, list) else value


@given(ARGUMENTS, ARGUMENTS)
def test_keys_are_equal_exactly_for_equal_json(one: dict[str, Any], other: dict[str, Any]):
    assert (key(one) == key(other)) == (structure(one) == structure(other))


@given(ARGUMENTS)
def test_the_order_of_keys_does_not_matter(arguments: dict[str, Any]):
    assert key(arguments) == key(reordered(arguments)) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (1, "1"),
        (0, False),
        (0.0, -0.0),
        (None, "null"),
        ([], {}),
        ([1, 2], [2, 1]),
        ("\u00e9", "e\u0301"),
        ("\U0001f600", "\ud83d\ude00"),
        ("a", "a\0"),
    ],
)
@pytest.mark.parametrize("padding", ["", "x" * 500])
def test_what_a_server_could_tell_apart_is_not_the_same(one: Any, other: Any, padding: str):
    assert key({"v": one, "p": padding}) != key({"v": other, "p": padding})


class Text(str):
    __slots__ = ()


def in_a_circle() -> dict[str, Any]:
    circle: dict[str, Any] = {}
    circle["self"] = circle
    return circle


def nested(depth: int) -> list[Any]:
    tree: list[Any] = []
    for _ in range(depth):
        tree = [tree]
    return tree


@pytest.mark.parametrize(
    "arguments",
    [
        {"v": math.nan},
        {"v": math.inf},
        {"v": (1, 2)},
        {"v": b"bytes"},
        {"v": {1, 2}},
        {"v": {1: "a number for a key"}},
        {"v": [{None: 1}]},
        {"v": [[object()]]},
        {"v": Text("a kind of text")},
        {1: "a number for a key"},
        {"v": nested(100_000)},
        in_a_circle(),
    ],
)
def test_what_is_not_json_is_the_same_as_nothing(arguments: Any):
    assert key(arguments) is None


def test_huge_arguments_are_not_kept_in_the_key():
    hostile = {"code": "x" * 1_000_000}
    same = key(hostile)
    assert same is not None
    assert len(same) <= 160
    assert same != key(hostile | {"more": 1})


def test_any_mapping_will_do_for_arguments():
    assert key(MappingProxyType({"a": 1})) == key({"a": 1})


def test_tool_server_environment_and_whatever_else_matters_are_part_of_it():
    keys = {
        key({}),
        key({}, "write"),
        key({}, "read", AServer(a_spec("other", share="hub"))),
        key({}, "read", AServer(a_spec(share="hub", env={"A": "1"}))),
        key({}, "read", None, 7),
        key({}, "read", None, True),
    }
    assert len(keys) == 6


def test_within_a_task_a_server_with_state_is_another_one_after_each_write():
    stateful, stateless = AServer(a_spec()), AServer(a_spec(share="hub"))
    call = a_call("read", policy=READ)
    before = [key_of(call, server, "task") for server in (stateful, stateless)]
    stateful.writes = stateless.writes = 1
    after = [key_of(call, server, "task") for server in (stateful, stateless)]
    assert (before[0] == after[0], before[1] == after[1]) == (False, True)


@pytest.mark.parametrize(
    ("policy", "keys", "writes"),
    [(ACT, {}, True), (SET, {}, True), (READ, {}, False), (ACT, {"share": "hub"}, False)],
)
def test_only_what_is_not_read_only_writes_and_only_where_there_is_state(policy, keys, writes):
    assert may_write(a_call(policy=policy), AServer(a_spec(**keys))) is writes


HUB = {"share": "hub"}


@pytest.mark.parametrize(
    ("policy", "keys", "scope"),
    [
        (ACT, HUB, "off"),
        (READ, {}, "task"),
        (READ, HUB, "hub"),
        (SET, HUB, "hub"),
        (READ, HUB | {"coalesce": "off"}, "off"),
        (READ, HUB | {"coalesce": "task"}, "task"),
        (READ, HUB | {"coalesce": "task", "cache": {"scope": "hub"}}, "hub"),
        (SET, HUB | {"coalesce": "task", "cache": {"scope": "hub"}}, "task"),
        (READ, HUB | {"coalesce": "off", "cache": {"scope": "hub"}}, "off"),
    ],
)
def test_whose_calls_may_be_one_call(policy, keys, scope):
    assert coalesce_scope(a_spec(**keys), policy) == scope
