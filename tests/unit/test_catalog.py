"""What is known about tools: copies of what servers said, overruled by the config."""

from __future__ import annotations

import pytest
from stage import a_spec

from toolhub.catalog import Catalog, with_declarations
from toolhub.model import ToolPolicy

pytestmark = pytest.mark.quick


def wire_tool(name: str = "read", **more) -> dict:
    return {"name": name, "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}}} | more


def policy_of(tool: dict, **declared) -> ToolPolicy:
    spec, catalog = a_spec(tools={"policy": {"read": declared}} if declared else {}), Catalog()
    catalog.put("print", spec, [tool])
    return catalog.policy("print", spec, "read")


def test_tools_keep_the_server_s_order_and_every_field():
    catalog, tools = Catalog(), [wire_tool("zeta", title="Z", **{"x-vendor": {"a": 1}}), wire_tool("alpha")]
    catalog.put("print", a_spec(), tools)
    assert [tool.raw for tool in catalog.get("print")] == tools


def test_a_server_that_was_never_asked_is_unknown_and_one_without_tools_is_not():
    catalog = Catalog()
    assert catalog.get("print") is None
    catalog.put("print", a_spec(), [])
    assert catalog.get("print") == []
    catalog.forget("print")
    catalog.forget("print")
    assert catalog.get("print") is None


def test_what_the_server_s_channel_does_later_to_its_answer_changes_nothing():
    catalog, answer = Catalog(), [wire_tool()]
    catalog.put("print", a_spec(), answer)
    answer[0]["inputSchema"]["properties"].clear()
    assert catalog.get("print")[0].input_schema["properties"] == {"path": {"type": "string"}}


def test_what_one_reader_does_to_a_tool_reaches_no_other():
    catalog = Catalog()
    catalog.put("print", a_spec(), [wire_tool()])[0].raw["name"] = "mine"
    catalog.get("print")[0].input_schema["properties"].clear()
    assert [tool.raw for tool in catalog.get("print")] == [wire_tool()]


def test_environments_are_kept_apart():
    catalog = Catalog()
    catalog.put("print", a_spec(), [wire_tool("read")])
    catalog.put("other", a_spec(), [wire_tool("write")])
    assert [tool.name for tool in catalog.get("print")] == ["read"]


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, ToolPolicy()),
        ({"readOnlyHint": True}, ToolPolicy(read_only=True)),
        ({"idempotentHint": True}, ToolPolicy(idempotent=True)),
        ({"readOnlyHint": False, "idempotentHint": None}, ToolPolicy()),
    ],
)
def test_annotations_are_the_default(annotations, expected):
    assert policy_of(wire_tool(annotations=annotations)) == expected


@pytest.mark.parametrize("annotations", [None, [], "read-only", 1])
def test_annotations_that_make_no_sense_declare_nothing(annotations):
    assert policy_of(wire_tool(annotations=annotations)) == ToolPolicy()


def test_the_config_overrules_annotations_in_both_directions():
    annotations = {"readOnlyHint": True, "idempotentHint": False}
    declared = policy_of(wire_tool(annotations=annotations), read_only=False, idempotent=True, timeout_s=7)
    assert declared == ToolPolicy(read_only=False, idempotent=True, timeout=7)


def test_what_the_config_leaves_open_is_left_to_the_annotations():
    assert policy_of(wire_tool(annotations={"readOnlyHint": True}), timeout_s=7).read_only


def test_a_tool_nobody_listed_is_not_safe_unless_the_config_says_so():
    spec = a_spec(tools={"policy": {"read": {"idempotent": True}}})
    assert Catalog().policy("print", spec, "write") == ToolPolicy()
    assert Catalog().policy("print", spec, "read") == ToolPolicy(idempotent=True)


def test_the_config_s_word_on_a_tool_is_what_readers_of_the_list_see():
    spec = a_spec(tools={"policy": {"read": {"read_only": True}, "drop": {"read_only": False}}})
    said = {"annotations": {"readOnlyHint": True, "title": "T"}}
    tools = Catalog().put("print", spec, [wire_tool("read"), wire_tool("drop", **said), wire_tool("other")])
    seen = {tool.name: with_declarations(spec, tool) for tool in tools}
    assert [seen[name].is_read_only for name in ("read", "drop", "other")] == [True, False, False]
    assert seen["drop"].annotations == {"readOnlyHint": False, "title": "T"}
    assert "annotations" not in seen["other"].raw
