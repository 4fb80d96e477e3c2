"""What is known about tools: copies of what servers said, overruled by the config."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_memory_hub import a_spec

import toolhub.catalog.catalog
from toolhub.catalog.catalog import Catalog, with_declarations
from toolhub.catalog.store import CatalogStore
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


PLAIN = a_spec()
READS = wire_tool("read", annotations={"readOnlyHint": True})


def a_store(tmp_path: Path, *tools: dict) -> CatalogStore:
    """What an earlier hub kept of `PLAIN`."""
    store = CatalogStore(tmp_path / "catalog")
    Catalog(store).put("print", PLAIN, tools)
    return store


def test_what_an_earlier_hub_was_told_is_shown_and_unverified(tmp_path):
    catalog = Catalog(a_store(tmp_path, wire_tool("read"), wire_tool("drop")))
    assert catalog.is_unverified("print", PLAIN)
    assert [tool.name for tool in catalog.get("print", PLAIN)] == ["read", "drop"]


def test_what_nobody_ever_said_needs_no_verification(tmp_path):
    assert not Catalog(CatalogStore(tmp_path)).is_unverified("print", PLAIN)


def test_annotations_count_only_once_the_server_itself_has_said_them(tmp_path):
    catalog = Catalog(a_store(tmp_path, READS))
    assert not catalog.policy("print", PLAIN, "read").read_only
    catalog.put("print", PLAIN, [READS])
    assert catalog.policy("print", PLAIN, "read").read_only
    assert not catalog.is_unverified("print", PLAIN)


def test_the_same_tools_in_another_order_are_no_news_and_keep_the_order_seen_before(tmp_path):
    catalog = Catalog(a_store(tmp_path, wire_tool("read"), wire_tool("drop")))
    said = [wire_tool("drop"), wire_tool("read")]
    assert not catalog.is_outdated_by("print", PLAIN, said)
    catalog.put("print", PLAIN, said)
    assert [tool.name for tool in catalog.get("print", PLAIN)] == ["read", "drop"]


@pytest.mark.parametrize("said", [[], [wire_tool("read", title="T")], [wire_tool("read"), wire_tool("more")]])
def test_other_tools_are_news_and_replace_what_is_kept(tmp_path, said):
    store = a_store(tmp_path, wire_tool("read"))
    catalog = Catalog(store)
    assert catalog.is_outdated_by("print", PLAIN, said)
    catalog.put("print", PLAIN, said)
    assert not catalog.is_outdated_by("print", PLAIN, said)
    assert store.read(PLAIN) == said


def test_the_first_answer_of_all_is_no_news():
    assert not Catalog().is_outdated_by("print", PLAIN, [wire_tool()])


def test_a_task_is_shown_what_another_task_s_server_said_until_its_own_has_spoken():
    template, catalog = a_spec(env={"TASK": "${task.id}"}), Catalog()
    a, b = (template.for_task({"id": name}) for name in "ab")
    catalog.put("a", a, [wire_tool("read")])
    assert catalog.is_unverified("b", b) and catalog.get("b") is None
    assert [tool.name for tool in catalog.get("b", b)] == ["read"]
    catalog.put("b", b, [wire_tool("write")])
    assert [[tool.name for tool in catalog.get(*known)] for known in (("a", a), ("b", b))] == [["read"], ["write"]]


def test_a_server_that_changes_its_tools_is_forgotten_everywhere_and_not_kept_again(tmp_path):
    store = a_store(tmp_path, wire_tool("read"))
    catalog = Catalog(store)
    catalog.put("print", PLAIN, [wire_tool("read")])
    catalog.forget("print", PLAIN)
    assert (catalog.get("print", PLAIN), store.read(PLAIN)) == (None, None)
    catalog.put("print", PLAIN, [wire_tool("read"), wire_tool("later")])
    assert len(catalog.get("print", PLAIN)) == 2
    assert (catalog.get("of another task", PLAIN), store.read(PLAIN)) == (None, None)


def test_an_answer_that_is_known_already_is_not_written_again(tmp_path):
    store = a_store(tmp_path, wire_tool("read"))
    catalog = Catalog(store)
    catalog.get("print", PLAIN)
    store.remove(PLAIN)
    catalog.put("print", PLAIN, [wire_tool("read")])
    assert store.read(PLAIN) is None


def test_servers_that_come_and_go_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(toolhub.catalog.catalog, "_MOST", 2)
    catalog = Catalog()
    for number in range(4):
        catalog.put(str(number), a_spec(args=[str(number)]), [wire_tool()])
    assert [catalog.get(str(number)) is not None for number in range(4)] == [False, False, True, True]


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
