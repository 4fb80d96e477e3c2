"""The tools of an agent: names, order, hints, and what wrong names meant."""

from __future__ import annotations

import re

import pytest
from toolhub_agent.tool_calls.catalog import ToolCatalog, ToolEntry


def tool(name: str, *properties: str, **more: object) -> dict[str, object]:
    return {"name": name, "description": f"does {name}", "schema": schema(*properties), **more}


def schema(*properties: str) -> dict[str, object]:
    return {"type": "object", "properties": {name: {"type": "string"} for name in properties}}


def server(name: str, *tools: dict[str, object]) -> dict[str, object]:
    return {"name": name, "tools": list(tools)}


READ_ONLY = {"annotations": {"readOnlyHint": True}}
CATALOG = ToolCatalog.of(
    [
        server(
            "web", tool("google_search", "q", **READ_ONLY), tool("scrape_and_extract_info", "url", "info_to_extract")
        ),
        server("tool-python", tool("run_python_code", "code_block", "sandbox_id"), tool("both")),
        server("broken", {"error": "Unable to fetch tools: no such program"}),
        server("other", tool("both", annotations=None)),
        server("agent-browsing", tool("search_and_browse", "subtask")),
    ],
    read_only=["other/both"],
)


def test_tools_are_found_by_both_names():
    assert CATALOG.find("web", "google_search") == ToolEntry(
        "web", "google_search", "web-google_search", "does google_search", schema("q"), True
    )
    assert CATALOG.find("other", "google_search") is None
    assert CATALOG.servers_with("both") == ["tool-python", "other"]


def test_a_server_that_could_not_be_asked_has_no_tools():
    assert CATALOG.servers["broken"] == ()


def test_read_only_is_what_says_so_itself_or_is_named():
    assert CATALOG.is_read_only("web", "google_search")
    assert CATALOG.is_read_only("other", "both")
    assert not CATALOG.is_read_only("tool-python", "both")
    assert not CATALOG.is_read_only("web", "unheard_of")
    assert ToolCatalog.of([], read_only=["web/fetch"]).is_read_only("web", "fetch")


@pytest.mark.parametrize("hint", [False, "true", 1, None])
def test_only_true_is_a_hint(hint):
    catalog = ToolCatalog.of([server("a", tool("b", annotations={"readOnlyHint": hint}))])
    assert not catalog.is_read_only("a", "b")


def test_sub_agents_may_overlap_but_are_not_read_only():
    assert CATALOG.is_independent("agent-browsing", "search_and_browse")
    assert not CATALOG.is_read_only("agent-browsing", "search_and_browse")
    assert not CATALOG.is_independent("tool-python", "run_python_code")


def test_hidden_tools_are_neither_shown_nor_a_correction():
    catalog = ToolCatalog.of([server("web", tool("search"), tool("fetch"))], hidden=["web/fetch"])
    assert catalog.find("web", "fetch") is None
    assert catalog.correct("wbe", "fetch", {}) == ("wbe", "fetch", {})
    assert [entry["function"]["name"] for entry in catalog.native_tools()] == ["web-search"]


def test_native_tools_are_in_the_order_of_the_definitions():
    assert [entry["function"]["name"] for entry in CATALOG.native_tools()] == [
        "web-google_search",
        "web-scrape_and_extract_info",
        "tool-python-run_python_code",
        "tool-python-both",
        "other-both",
        "agent-browsing-search_and_browse",
    ]
    assert CATALOG.native_tools()[0] == {
        "type": "function",
        "function": {"name": "web-google_search", "description": "does google_search", "parameters": schema("q")},
    }


def test_a_tool_without_a_schema_takes_an_empty_object():
    catalog = ToolCatalog.of([{"name": "a", "tools": [{"name": "b", "description": None, "schema": None}]}])
    assert catalog.native_tools()[0]["function"] == {
        "name": "a-b",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        ("tool-python-run_python_code", ("tool-python", "run_python_code")),
        ("agent-browsing-search_and_browse", ("agent-browsing", "search_and_browse")),
        ("never-heard-of", ("never-heard", "of")),
        ("google_search", ("unknown", "google_search")),
    ],
)
def test_a_function_name_is_split_into_server_and_tool(function, parts):
    assert CATALOG.split(function) == parts


def test_every_function_name_is_valid_unique_and_leads_back():
    names = [("a", "b-c"), ("a-b", "c"), ("a.b", "c d"), ("a_b", "c_d"), ("s" * 80, "t"), ("s" * 80, "u")]
    catalog = ToolCatalog.of(
        [server(name, tool(its)) for name, its in names[:4]] + [server("s" * 80, tool("t"), tool("u"))]
    )
    functions = [entry["function"]["name"] for entry in catalog.native_tools()]
    assert [catalog.split(function) for function in functions] == names
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", function) for function in functions)
    again = ToolCatalog.of([server("a", tool("b-c")), server("a-b", tool("c"))])
    assert [entry["function"]["name"] for entry in again.native_tools()] == functions[:2]


@pytest.mark.parametrize(
    ("called", "meant"),
    [
        (("web", "google_search"), ("web", "google_search")),
        (("google", "google_search"), ("web", "google_search")),
        (("unknown", "google_search"), ("web", "google_search")),
        (("", "run_python_code"), ("tool-python", "run_python_code")),
        (("tool-python", "python"), ("tool-python", "run_python_code")),
        (("python", "python_code"), ("tool-python", "run_python_code")),
        (("nowhere", "both"), ("nowhere", "both")),  # two servers have it: nobody knows which was meant
        (("web", "unheard_of"), ("web", "unheard_of")),
    ],
)
def test_a_wrong_server_is_corrected_if_only_one_has_the_tool(called: tuple[str, str], meant: tuple[str, str]):
    assert CATALOG.correct(*called, {})[:2] == meant


def test_a_tool_that_is_really_called_python_stays_what_it_is():
    stateless = server("stateless_python", tool("python", "code"))
    assert ToolCatalog.of([stateless]).correct("x", "python", {"code": "1"}) == (
        "stateless_python",
        "python",
        {"code": "1"},
    )
    both = ToolCatalog.of([stateless, server("tool-python", tool("run_python_code", "code_block"))])
    assert both.correct("stateless_python", "python", {})[:2] == ("stateless_python", "python")
    assert both.correct("tool-python", "python", {})[:2] == ("tool-python", "run_python_code")


@pytest.mark.parametrize(
    ("called", "written", "meant"),
    [
        ("scrape_and_extract_info", {"url": "u", "description": "d"}, {"url": "u", "info_to_extract": "d"}),
        ("scrape_and_extract_info", {"introduction": "i"}, {"info_to_extract": "i"}),
        (
            "scrape_and_extract_info",
            {"info_to_extract": "x", "description": "d"},
            {"info_to_extract": "x", "description": "d"},
        ),
        ("run_python_code", {"code": "1"}, {"code_block": "1", "sandbox_id": "default"}),
        ("run_python_code", {"code_block": "1", "sandbox_id": "s"}, {"code_block": "1", "sandbox_id": "s"}),
        ("google_search", {"description": "d"}, {"description": "d"}),
    ],
)
def test_arguments_are_given_the_names_that_the_tool_knows(called, written, meant):
    before = dict(written)
    assert CATALOG.correct("", called, written)[2] == meant
    assert written == before


def test_arguments_that_the_tool_knows_are_not_renamed():
    catalog = ToolCatalog.of([server("sh", tool("run_python_code", "code"))])
    assert catalog.correct("sh", "run_python_code", {"code": "1"})[2] == {"code": "1"}
