"""The system prompt has the structure that models were trained with, and is the same to the byte every time."""

from __future__ import annotations

import datetime
import hashlib
import re
from typing import Any

import pytest
from toolhub_agent.prompts import system_prompt
from toolhub_agent.tool_calls.catalog import ToolCatalog
from toolhub_agent.tool_calls.xml_calls import XmlCallReader

DEFINITIONS = [
    {
        "name": "web",
        "tools": [
            {
                "name": "google_search",
                "description": "Searches.\n\nArgs:\n    q: what for",
                "schema": {
                    "properties": {"q": {"title": "Q", "type": "string"}, "num": {"default": None, "type": "integer"}},
                    "required": ["q"],
                    "title": "google_searchArguments",
                    "type": "object",
                },
            }
        ],
    },
    {"name": "broken", "tools": [{"error": "Unable to fetch tools: gone"}]},
    {"name": "agent-browsing", "tools": [{"name": "search_and_browse", "description": None, "schema": {}}]},
]
DATE = datetime.date(2026, 4, 13)


def prompt(**more: Any) -> str:
    given: dict[str, Any] = {"date": DATE, "objective": "Answer the question."} | more
    return system_prompt(ToolCatalog.of(DEFINITIONS), **given)


def test_its_headings_stand_in_the_order_models_expect():
    assert re.findall(r"^#.*", prompt(), re.MULTILINE) == [
        "# Tool-Use Formatting Instructions",
        "## Server name: web",
        "### Tool name: google_search",
        "## Server name: broken",
        "## Server name: agent-browsing",
        "### Tool name: search_and_browse",
        "# General Objective",
        "# Agent Specific Objective",
    ]


def test_a_tool_is_described_with_its_schema_as_python_prints_it():
    assert (
        "\n## Server name: web\n"
        "### Tool name: google_search\n"
        "Description: Searches.\n\nArgs:\n    q: what for\n"
        "Input JSON schema: {'properties': {'q': {'title': 'Q', 'type': 'string'}, "
        "'num': {'default': None, 'type': 'integer'}}, 'required': ['q'], "
        "'title': 'google_searchArguments', 'type': 'object'}\n"
        "\n## Server name: broken\n"
        "\n## Server name: agent-browsing\n"
    ) in prompt()


def test_the_error_of_a_server_is_not_shown():
    assert "Unable" not in prompt()


def test_the_date_is_the_one_given():
    assert prompt().count("Today is: 2026-04-13\n") == 1


def test_its_example_is_a_call_that_can_be_read():
    reader = XmlCallReader()
    examples = [call for call in reader.feed(prompt()) if call.problem is None]
    assert [(call.server, call.tool) for call in examples] == [("server name here", "tool name here")]
    assert list(examples[0].arguments) == ["param1", "param2"]


def test_one_tool_per_message_is_asked_for():
    assert "only one tool per message" in prompt()


@pytest.mark.parametrize("protocol", ["xml", "native"])
def test_asked_for_parallel_calls_it_wants_independent_ones_in_one_message(protocol):
    text = prompt(protocol=protocol, parallel=True)
    assert "Use several tools in one message whenever none of them needs another one's result" in text
    assert "only one tool per message" not in text
    assert ("each in a <use_mcp_tool> tag of its own" in text) == (protocol == "xml")
    assert "The use of a tool stands at the **end**" not in text


def test_with_native_calls_the_tools_are_not_in_the_text():
    text = prompt(protocol="native")
    assert "use_mcp_tool" not in text
    assert "google_search" not in text
    assert text.endswith("# Agent Specific Objective\n\nAnswer the question.\n")


@pytest.mark.parametrize(
    ("protocol", "digest"),
    [("xml", "b97d4b7f17cbeb9e"), ("native", "e4612fac60c444f4")],
)
def test_not_one_byte_of_it_changes_by_accident(protocol, digest):
    """A change here invalidates every cached prefix and what models were evaluated with: decide it, then note it."""
    assert hashlib.sha256(prompt(protocol=protocol).encode()).hexdigest()[:16] == digest
