"""The search tools as they are published: schemas, descriptions, annotations."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from toolhub_servers.search import google_search, search_and_scrape_webpage, sogou_search

from tests.toolhub_servers.search.search_stage import calling, text_of

pytestmark = pytest.mark.anyio

KEY: dict[str, Any] = {"serper": {"api_key": "k"}}
SCRAPE = '{"properties": {"url": {"title": "Url", "type": "string"}}, "required": ["url"], "type": "object"}'
# As the reference servers publish them, letter by letter.
SCHEMAS: list[tuple[ModuleType, dict[str, Any], dict[str, str]]] = [
    (
        search_and_scrape_webpage,
        KEY,
        {
            "google_search": '{"properties": {"q": {"title": "Q", "type": "string"}, '
            '"gl": {"default": "us", "title": "Gl", "type": "string"}, '
            '"hl": {"default": "en", "title": "Hl", "type": "string"}, '
            '"location": {"default": null, "title": "Location", "type": "string"}, '
            '"num": {"default": null, "title": "Num", "type": "integer"}, '
            '"tbs": {"default": null, "title": "Tbs", "type": "string"}, '
            '"page": {"default": null, "title": "Page", "type": "integer"}, '
            '"autocorrect": {"default": null, "title": "Autocorrect", "type": "boolean"}}, '
            '"required": ["q"], "title": "google_searchArguments", "type": "object"}',
            "sogou_search": '{"properties": {"q": {"title": "Q", "type": "string"}, '
            '"num": {"default": 10, "title": "Num", "type": "integer"}}, '
            '"required": ["q"], "title": "sogou_searchArguments", "type": "object"}',
        },
    ),
    (
        google_search,
        KEY,
        {
            "google_search": '{"properties": {"q": {"title": "Q", "type": "string"}, '
            '"gl": {"default": "us", "title": "Gl", "type": "string"}, '
            '"hl": {"default": "en", "title": "Hl", "type": "string"}, '
            '"location": {"default": null, "title": "Location", "type": "string"}, '
            '"num": {"default": 10, "title": "Num", "type": "integer"}, '
            '"tbs": {"default": null, "title": "Tbs", "type": "string"}, '
            '"page": {"default": 1, "title": "Page", "type": "integer"}}, '
            '"required": ["q"], "type": "object"}',
            "scrape_website": SCRAPE,
        },
    ),
    (
        sogou_search,
        {},
        {
            "sogou_search": '{"properties": {"Query": {"title": "Query", "type": "string"}, '
            '"Cnt": {"default": 10, "title": "Cnt", "type": "integer"}}, "required": ["Query"], "type": "object"}',
            "scrape_website": SCRAPE,
        },
    ),
]
SERVERS = pytest.mark.parametrize(
    ("module", "options", "schemas"), SCHEMAS, ids=lambda value: getattr(value, "__name__", "")
)


@SERVERS
async def test_the_tools_have_the_schemas_that_the_models_know(
    module: ModuleType, options: dict[str, Any], schemas: dict[str, str]
) -> None:
    listed = await module.create_server(**options).list_tools()
    assert {tool.name: json.dumps(tool.input_schema) for tool in listed} == schemas
    assert [tool.name for tool in listed] == list(schemas)


@SERVERS
async def test_every_description_explains_every_parameter(
    module: ModuleType, options: dict[str, Any], schemas: dict[str, str]
) -> None:
    for tool in await module.create_server(**options).list_tools():
        assert tool.description and not tool.description.startswith((" ", "\n"))
        assert [name for name in tool.input_schema["properties"] if f"    {name}: " not in tool.description] == []


@SERVERS
async def test_the_tools_say_that_they_change_nothing(
    module: ModuleType, options: dict[str, Any], schemas: dict[str, str]
) -> None:
    for tool in await module.create_server(**options).list_tools():
        assert tool.annotations and tool.annotations.read_only_hint


@SERVERS
async def test_a_call_that_cannot_be_made_has_the_prefix_that_loops_look_for(
    module: ModuleType, options: dict[str, Any], schemas: dict[str, str]
) -> None:
    async with calling(module.create_server(**options)) as client:
        unknown = await client.call_tool("search", {})
        assert unknown.is_error and text_of(unknown) == "Unknown tool: search"
        for tool in schemas:
            result = await client.call_tool(tool, {})
            assert result.is_error
            assert text_of(result).startswith(f"Error executing tool {tool}: 1 validation error for {tool}Arguments\n")
