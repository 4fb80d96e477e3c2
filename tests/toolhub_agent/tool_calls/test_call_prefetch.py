"""A call is announced as soon as the arguments that its tool can use are complete in the stream."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from toolhub_agent.tool_calls import Dispatcher
from toolhub_agent.tool_calls.arguments import complete_arguments
from toolhub_agent.tool_calls.catalog import ToolCatalog
from toolhub_agent.types import Delta, Json, ToolCall

pytestmark = pytest.mark.anyio

TOOLS = [
    {
        "name": "pages",
        "tools": [
            {"name": "scrape", "schema": {}, "annotations": {"readOnlyHint": True}, "prefetch": ["url"]},
            {"name": "plain", "schema": {}},
        ],
    }
]
ARGUMENTS = {"url": 'https://a.example/"q"?b=\\', "list": [1, {"url": "inner"}], "n": 15, "info": "how, deep: {it} is"}


@pytest.mark.parametrize("text", [json.dumps(ARGUMENTS), json.dumps(ARGUMENTS, indent=2)])
def test_an_argument_is_complete_when_no_further_text_can_change_it(text: str) -> None:
    seen: list[set[str]] = []
    for end in range(len(text) + 1):
        known = complete_arguments(text[:end])
        assert known.items() <= ARGUMENTS.items()
        assert not seen or known.keys() >= seen[-1]
        seen.append(set(known))
    assert seen[-1] == set(ARGUMENTS)
    assert seen[text.index(', "list"') if ', "list"' in text else text.index(',\n  "list"')] == {"url"}


UNFINISHED = ["", "{", '{"url', '{"url"', '{"url": "half', '{"n": 1', "[1, 2", '"text"', "{]", "}{"]


@pytest.mark.parametrize("text", UNFINISHED)
def test_what_may_still_grow_is_not_complete(text: str) -> None:
    assert complete_arguments(text) == {}


class Announced:
    def __init__(self, *, fails: bool = False) -> None:
        self.calls: list[tuple[str, str, Json]] = []
        self._fails = fails

    async def __call__(self, server: str, tool: str, arguments: Json) -> None:
        self.calls.append((server, tool, arguments))
        if self._fails:
            raise RuntimeError("the hub is gone")


async def execute(call: ToolCall) -> str:
    return f"page {call.arguments['url']}"


def xml(server: str, tool: str, arguments: str) -> list[Delta]:
    head = f"<use_mcp_tool><server_name>{server}</server_name><tool_name>{tool}</tool_name><arguments>"
    return [Delta(text=piece) for piece in (head, *arguments, "</arguments></use_mcp_tool>")]


def native(server: str, tool: str, arguments: str) -> list[Delta]:
    head: dict[str, Any] = {"index": 0, "id": "c1", "function": {"name": f"{server}-{tool}", "arguments": ""}}
    pieces = [{"index": 0, "function": {"arguments": char}} for char in arguments]
    return [Delta(tool_calls=(piece,)) for piece in (head, *pieces)]


WRITTEN = '{"url": "https://a.example", "info": "how deep"}'


@pytest.mark.parametrize("protocol", ["xml", "native"])
async def test_a_call_is_announced_once_when_its_argument_is_complete(protocol: Any) -> None:
    announced = Announced()
    pieces = (xml if protocol == "xml" else native)("pages", "scrape", WRITTEN)
    before = WRITTEN.index('", "info"')
    with anyio.fail_after(30):
        async with Dispatcher(execute, ToolCatalog.of(TOOLS), protocol=protocol, prefetch=announced) as turn:
            for piece in pieces[: before + 1]:
                turn.feed(piece)
            await anyio.wait_all_tasks_blocked()
            assert announced.calls == []
            turn.feed(pieces[before + 1])
            await anyio.wait_all_tasks_blocked()
            assert announced.calls == [("pages", "scrape", {"url": "https://a.example"})]
            for piece in pieces[before + 2 :]:
                turn.feed(piece)
            await turn.finish()
            assert [outcome.text async for outcome in turn.results()] == ["page https://a.example"]
    assert len(announced.calls) == 1


async def test_the_tool_that_the_model_meant_is_announced() -> None:
    announced = Announced()
    async with Dispatcher(execute, ToolCatalog.of(TOOLS), prefetch=announced) as turn:
        for piece in xml("wrong", "scrape", WRITTEN):
            turn.feed(piece)
        await anyio.wait_all_tasks_blocked()
    assert announced.calls == [("pages", "scrape", {"url": "https://a.example"})]


@pytest.mark.parametrize(("server", "tool"), [("pages", "plain"), ("pages", "unknown")])
async def test_a_call_of_a_tool_that_declares_nothing_is_not_announced(server: str, tool: str) -> None:
    announced = Announced()
    async with Dispatcher(execute, ToolCatalog.of(TOOLS), prefetch=announced) as turn:
        for piece in xml(server, tool, WRITTEN):
            turn.feed(piece)
        await anyio.wait_all_tasks_blocked()
    assert announced.calls == []


async def test_an_announcement_that_fails_does_not_fail_the_call() -> None:
    async with Dispatcher(execute, ToolCatalog.of(TOOLS), prefetch=Announced(fails=True)) as turn:
        for piece in xml("pages", "scrape", WRITTEN):
            turn.feed(piece)
        await turn.finish()
        assert [outcome.is_error async for outcome in turn.results()] == [False]
