"""Tools of servers that each task has for itself: described once, called each with its own state."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path

import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase
from server_calls import answer
from toolhub_servers.serving.server import make_tool

from tests.toolhub_servers.roster import ALL, make

pytestmark = pytest.mark.anyio


class Counter:
    """Counts in steps."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.value = 0

    async def count(self, times: int = 1, unit: str | None = None) -> str:
        """Count on.

        Args:
            times: How many steps.
            unit: What is counted.
        """
        self.value += self.step * times
        return f"{self.value} {unit or ''}".strip()


@pytest.mark.parametrize("name", [name for name in ALL if name != "browser"])
async def test_a_second_server_describes_nothing_anew(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first = await make(name, tmp_path).list_tools()
    described = set(ArgModelBase.__subclasses__())
    second = make(name, tmp_path)
    assert set(ArgModelBase.__subclasses__()) <= described
    assert await second.list_tools() == first


async def test_each_server_calls_its_own_object() -> None:
    ones, tens = Counter(1), Counter(10)
    servers = [MCPServer("counting", tools=[make_tool(counter.count)]) for counter in (ones, tens)]
    async with Client(servers[0]) as by_one, Client(servers[1]) as by_ten:
        assert await answer(by_one, "count", times=3) == "3"
        assert await answer(by_ten, "count", times=3, unit="sheep") == "30 sheep"
    assert (ones.value, tens.value) == (3, 30)


async def test_each_server_calls_its_own_closure() -> None:
    def saying(word: str) -> MCPServer:
        async def say() -> str:
            """Say it."""
            return word

        return MCPServer("saying", tools=[make_tool(say)])

    async with Client(saying("yes")) as yes, Client(saying("no")) as no:
        assert (await answer(yes, "say"), await answer(no, "say")) == ("yes", "no")


def test_the_first_object_is_not_kept_by_the_description() -> None:
    class Idle(Counter):
        async def count(self, times: int = 1, unit: str | None = None) -> str:
            return "nothing"

    counter = Idle(1)
    gone = weakref.ref(counter)
    make_tool(counter.count)
    del counter
    gc.collect()
    assert gone() is None


def test_a_description_is_the_docstring_without_its_indentation() -> None:
    assert make_tool(Counter(1).count).description.startswith("Count on.\n\nArgs:\n    times: How")


def test_a_parameter_that_a_function_does_without_can_be_shown_as_needed() -> None:
    async def shout(text: str, tone: str | None = None) -> str:
        return text

    schema = make_tool(shout, is_titled=False, needed=("tone",)).parameters
    assert schema["required"] == ["text", "tone"]
    assert "default" not in schema["properties"]["tone"] and "title" not in json.dumps(list(schema))
