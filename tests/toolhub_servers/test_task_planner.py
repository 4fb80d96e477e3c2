"""MiroFlow's task_planner: one list per task, which survives whatever happens to the server."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mcp import Client
from server_calls import text_of
from toolhub_servers.task_planner import MAX_TODOS, Plan, create_server

from toolhub import Hub, parse_config
from toolhub.extensions import BuiltinContext

# As the reference server publishes them, letter by letter.
TITLES = '"titles": {"items": {"type": "string"}, "title": "Titles", "type": "array"}'
TODO_IDS = '"todo_ids": {"items": {"type": "string"}, "title": "Todo Ids", "type": "array"}'
NEEDS = '"required": ["{0}"], "title": "{1}Arguments", "type": "object"'
SCHEMAS = {
    "add_todo": "{" + f'"properties": {{{TITLES}}}, ' + NEEDS.format("titles", "add_todo") + "}",
    "list_todos": '{"properties": {}, "title": "list_todosArguments", "type": "object"}',
} | {
    name: "{" + f'"properties": {{{TODO_IDS}}}, ' + NEEDS.format("todo_ids", name) + "}"
    for name in ("complete_todo", "delete_todo")
}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan(tmp_path, "t")


def ids(text: str) -> list[str]:
    return re.findall(r"\((\w{8})\)$", text, re.MULTILINE)


@pytest.mark.anyio
async def test_the_tools_have_the_schemas_that_the_models_know(tmp_path: Path) -> None:
    listed = await create_server(data_dir=str(tmp_path)).list_tools()
    assert {tool.name: json.dumps(tool.input_schema) for tool in listed} == SCHEMAS


def test_todos_are_listed_with_counts_and_short_ids(plan: Plan) -> None:
    text = plan.add(["find the paper", "  read it  ", " "])
    assert text.splitlines()[:5] == [
        "✅ Added 2 todo(s)",
        "",
        "# Task Plan",
        "",
        "Total: 2 | Pending: 2 | Completed: 0",
    ]
    assert re.search(r"^- \[ \] read it \(\w{8}\)$", text, re.MULTILINE)


def test_todos_are_completed_and_deleted_by_the_beginning_of_their_ids(plan: Plan) -> None:
    first, second = ids(plan.add(["a", "b"]))
    assert "- [x] a" in plan.complete([first])
    text = plan.delete([second])
    assert text.startswith("🗑️ Deleted 1 todo(s)") and "Total: 1 | Pending: 0 | Completed: 1" in text


def test_an_unknown_id_changes_nothing(plan: Plan) -> None:
    (first,) = ids(plan.add(["a"]))
    text = plan.complete([first, "nonsense"])
    assert text.startswith("❌ Error: no todo has an id that begins with 'nonsense'") and "- [ ] a" in text


def test_an_id_that_fits_several_is_refused(plan: Plan) -> None:
    plan.add(["a", "b"])
    assert plan.delete([""]).startswith("❌ Error: no todo has an id")
    assert plan.delete([]).startswith("❌ Error: no ids were given")


def test_a_plan_has_an_end(plan: Plan) -> None:
    plan.add(["x"] * MAX_TODOS)
    assert plan.add(["one more"]).startswith(f"❌ Error: a plan has at most {MAX_TODOS} todos")


def test_the_plan_survives_a_new_server(plan: Plan, tmp_path: Path) -> None:
    plan.add(["a"])
    assert "- [ ] a" in Plan(tmp_path, "t").show()
    assert "Total: 0" in Plan(tmp_path, "other").show()


def test_a_broken_file_is_told_and_set_aside(plan: Plan) -> None:
    plan.file.write_text('[{"id": "1", ')
    text = plan.show()
    assert "could not be read and was set aside as todos_t.broken-" in text
    assert [path.read_text() for path in plan.file.parent.glob("*.broken-*")] == ['[{"id": "1", ']
    assert plan.add(["anew"]).startswith("✅")


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: Plan(tmp_path, "t").add([f"todo {number}"]), range(40)))
    assert "Total: 40" in Plan(tmp_path, "t").show()
    assert list(tmp_path.glob("*.draft")) == []


def test_a_task_id_cannot_leave_the_folder(tmp_path: Path) -> None:
    plan = Plan(tmp_path / "lists", "../../etc/passwd")
    plan.add(["a"])
    assert plan.file.parent == tmp_path / "lists" and plan.file.exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="data_dir .* cannot be made"):
        create_server(data_dir=str(tmp_path / "file" / "x"), context=BuiltinContext("t"))


@pytest.mark.anyio
async def test_each_task_of_a_hub_has_its_own_plan(tmp_path: Path) -> None:
    entry = {"builtin": "task_planner", "options": {"data_dir": str(tmp_path)}}
    async with Hub(parse_config({"hub": {"state_dir": str(tmp_path)}, "servers": {"task_planner": entry}})) as hub:
        async with hub.task("a") as first, hub.task("b") as second:
            await first.call("task_planner", "add_todo", {"titles": ["mine"]})
            assert "Total: 0" in (await second.call("task_planner", "list_todos")).text
        async with hub.task("a") as again:
            assert "mine" in (await again.call("task_planner", "list_todos")).text


@pytest.mark.anyio
async def test_a_client_calls_it_over_the_protocol(tmp_path: Path) -> None:
    async with Client(create_server(data_dir=str(tmp_path))) as client:
        result = await client.call_tool("add_todo", {"titles": ["a"]})
        assert text_of(result).startswith("✅ Added 1 todo(s)")
