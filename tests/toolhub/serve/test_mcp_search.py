"""`hub.tools: search`: clients see two tools, and find and call all others with them."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_clients import MODES, RawClient, mcp_client, text_of
from mcp_types import ElicitResult
from real_processes import FIXTURES
from served_hub import FORKED, TOOLHUB, ServedHub, environment, served, stub, write_config

from toolhub.serve.mcp.search import ranked

pytestmark = pytest.mark.anyio

REFERENCE = {"command": sys.executable, "args": [str(FIXTURES / "reference_server.py"), "--only", "handshake"]}
# Has many tools, one of which has the name of a tool of the gateway.
MANY = """
import sys
sys.path.insert(0, sys.argv[1])
from minimal import Server, text

class Many(Server):
    def describe(self, name):
        told = {"description": f"Do the thing {name}", "annotations": {"readOnlyHint": name == "readWeather"}}
        if name == "readWeather":
            told["description"] = "Forecasts of rain and sun for a city"
        return {**super().describe(name), **told}

server = Many("many")
for number in range(300):
    server.tool(f"thing_{number}")(lambda call: text(call.name))
server.tool("readWeather", city="string")(lambda call: text("rain in " + call.arguments["city"]))
server.tool("find_tools")(lambda call: text("the server's own"))
server.run()
"""


def many(folder: Path) -> dict[str, Any]:
    (folder / "many_server.py").write_text(MANY)
    return {"command": sys.executable, "args": [str(folder / "many_server.py"), str(FIXTURES)]}


@pytest.fixture(scope="module", params=["one server", "several servers"])
def hub(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    folder = tmp_path_factory.mktemp("search")
    servers = {"many": many(folder)}
    if request.param == "several servers":
        servers |= {"reference": REFERENCE | FORKED, "dead": {"command": "no-such-program"}, "echo": stub()}
    with served(write_config(folder, servers=servers, hub={"tools": "search"})) as running:
        yield running


async def found(client: Client, query: str, **options: Any) -> list[dict[str, Any]]:
    result = await client.call_tool("find_tools", {"query": query, **options})
    told = json.loads(text_of(result))
    assert told == result.structured_content
    tools: list[dict[str, Any]] = told["tools"]
    return tools


# --- the ranking ----------------------------------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("weather", 0),
        ("forecasting for a city", 0),
        ("sending an email", 1),
        ("mail send", 1),
        ("query the database", 2),
        ("查天气", 3),
        ('"quotes" OR (NEAR) weather*', 0),
    ],
)
def test_the_best_tool_has_the_rarest_words_of_the_query(query: str, best: int) -> None:
    tools = [
        ("web get_weather", "The forecast for a city"),
        ("office sendMail", "Sends an email to an address"),
        ("sqlite read_query", "Run a SELECT on a database, for example of weather"),
        ("web lookup", "查询城市的天气"),
    ]
    assert ranked(query, tools)[0] == best


@pytest.mark.quick
@pytest.mark.parametrize("query", ["", "***", '"', "nothing\ud800 of this", "\x00"])
def test_a_query_without_a_known_word_finds_nothing(query: str) -> None:
    assert ranked(query, [("web get_weather", "A forecast \udfff")]) == []


# --- over HTTP ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_sees_two_tools_and_finds_a_tool_with_its_schema_and_annotations(
    hub: ServedHub, mode: str
) -> None:
    async with mcp_client(hub, mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["find_tools", "call_tool"]
        first, *others = await found(client, "rain forecast", limit=3)
        assert first["name"] == "readWeather" and first["annotations"] == {"readOnlyHint": True}
        assert first["inputSchema"]["required"] == ["city"] and len(others) <= 2
        assert len(await found(client, "thing")) == 5 and len(await found(client, "thing", limit=1000)) == 20


@pytest.mark.parametrize("mode", MODES)
async def test_a_found_tool_is_called_and_the_call_is_traced_as_its_own(hub: ServedHub, mode: str) -> None:
    task = f"traced-{mode}"
    async with mcp_client(hub, mode, headers={"X-Toolhub-Task": task}) as client:
        arguments = {"name": "readWeather", "arguments": {"city": "Bergen"}}
        assert text_of(await client.call_tool("call_tool", arguments)) == "rain in Bergen"
        assert text_of(await client.call_tool("call_tool", {"name": "thing_7"})) == "thing_7"
        assert text_of(await client.call_tool("readWeather", {"city": "Oslo"})) == "rain in Oslo"
        with hub.client() as http:
            assert http.get(f"/v1/tasks/{task}").json()["calls"] == 3


@pytest.mark.parametrize("mode", MODES)
async def test_a_server_s_tool_with_the_name_of_the_gateway_s_can_be_called(hub: ServedHub, mode: str) -> None:
    async with mcp_client(hub, mode) as client:
        assert text_of(await client.call_tool("call_tool", {"name": "find_tools"})) == "the server's own"


@pytest.mark.parametrize("mode", MODES)
async def test_an_unknown_name_is_answered_with_near_names_in_a_result_that_the_model_reads(
    hub: ServedHub, mode: str
) -> None:
    async with mcp_client(hub, mode) as client:
        result = await client.call_tool("call_tool", {"name": "readWether", "arguments": {}})
    assert result.is_error and "did you mean 'readWeather'" in str(result.content)


@pytest.mark.parametrize(
    ("tool", "arguments", "wanted"),
    [
        ("find_tools", {}, "needs a `query`"),
        ("find_tools", {"query": "x", "limit": "many"}, "`limit` is a whole number"),
        ("call_tool", {}, "needs the tool's `name`"),
        ("call_tool", {"name": "thing_7", "arguments": "{}"}, "`arguments`, an object"),
    ],
)
async def test_wrong_arguments_are_answered_with_what_is_needed(
    hub: ServedHub, tool: str, arguments: dict[str, Any], wanted: str
) -> None:
    async with mcp_client(hub) as client:
        result = await client.call_tool(tool, arguments)
    assert result.is_error and wanted in str(result.content)


def test_what_a_model_writes_as_arguments_reaches_no_other_field_of_the_request(hub: ServedHub) -> None:
    with hub.client() as http:
        arguments = {"name": "thing_7", "arguments": {}, "_meta": {"progressToken": 1}, "task": {"ttl": 1}}
        answer = RawClient(http).request("tools/call", {"name": "call_tool", "arguments": arguments})
    assert answer["result"]["content"][0]["text"] == "thing_7"


async def test_a_query_that_finds_nothing_says_among_how_many_tools_it_was(hub: ServedHub) -> None:
    async with mcp_client(hub) as client:
        result = await client.call_tool("find_tools", {"query": "xylophone"})
    assert "tools has a word of 'xylophone'" in text_of(result) and result.structured_content["tools"] == []


@pytest.mark.parametrize("mode", MODES)
async def test_a_called_tool_can_ask_the_client_and_report_progress(mode: str, tmp_path: Path) -> None:
    async def answered(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"username": "ada", "email": "ada@example.org"})

    seen: list[float] = []
    complete = anyio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)
        if progress == 100:
            complete.set()

    with served(write_config(tmp_path, servers={"reference": REFERENCE}, hub={"tools": "search"})) as hub:
        async with mcp_client(hub, mode, elicitation_callback=answered) as client:
            call = {"name": "test_elicitation", "arguments": {"message": "Who are you?"}}
            assert "ada" in text_of(await client.call_tool("call_tool", call))
            call = {"name": "test_tool_with_progress"}
            await client.call_tool("call_tool", call, progress_callback=on_progress)
            with anyio.fail_after(30):
                await complete.wait()
            assert (await client.list_prompts()).prompts  # everything else passes as without search
    assert seen == [0, 50, 100]


async def test_a_stateful_server_keeps_its_state_for_a_client_that_names_no_task(tmp_path: Path) -> None:
    with served(write_config(tmp_path, servers={"echo": stub()}, hub={"tools": "search"})) as hub:
        async with Client(streamable_http_client(f"{hub.http}/mcp"), mode="auto") as client:
            first = await client.call_tool("call_tool", {"name": "pid"})
            handle = (first.meta or {})["toolhub/task"]
            again = await client.call_tool("call_tool", {"name": "pid", "toolhub_task": handle})
            other = await client.call_tool("call_tool", {"name": "pid"})
    assert text_of(first) == text_of(again) != text_of(other)


# --- over stdio -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def over_stdio(mode: str, folder: Path, *options: str) -> AsyncIterator[Client]:
    command, *arguments = TOOLHUB
    server = StdioServerParameters(command=command, args=[*arguments, "stdio", *options], cwd=folder, env=environment())
    with anyio.fail_after(30):
        async with Client(stdio_client(server), mode=mode) as client:
            yield client


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("own_hub", [True, False], ids=["a hub of its own", "a hub that runs"])
async def test_the_two_tools_work_over_stdio(mode: str, own_hub: bool, tmp_path: Path) -> None:
    config = write_config(tmp_path, servers={"many": many(tmp_path)}, hub={"tools": "search"})

    async def check(*options: str) -> None:
        async with over_stdio(mode, tmp_path, *options) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["find_tools", "call_tool"]
            (tool,) = await found(client, "forecast")
            call = {"name": tool["name"], "arguments": {"city": "Bergen"}}
            assert text_of(await client.call_tool("call_tool", call)) == "rain in Bergen"

    if own_hub:
        await check("--config", str(config))
    else:
        with served(config) as hub:
            await check("--hub", hub.http)
