"""A task's tools as functions of a model. The recipes run them with the real packages."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
import pytest
from in_memory_hub import WAIT_TIMEOUT_S, a_hub, echo

from toolhub import HubTask, TaskClosed, ToolhubError
from toolhub.channel.memory import MemoryServer, text_result
from toolhub.errors import ConfigError, StartError, ToolNotFound
from toolhub.function_tools import OpenAITools
from toolhub.model import Json, Result, ToolInfo

pytestmark = pytest.mark.anyio


def function_call(name: str, arguments: Any = None, *, id: str = "call_1") -> Json:
    written = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return {"id": id, "type": "function", "function": {"name": name, "arguments": written}}


class RecordingTask:
    """A task of two servers whose calls end when the test lets them; it notes their order."""

    def __init__(self, *read_only: str) -> None:
        self._read_only = read_only
        self.began: list[str] = []
        self.running = 0
        self.most_running = 0
        self.changed = anyio.Event()
        self.may_end = anyio.Event()

    async def tools_by_server(self) -> Mapping[str, list[ToolInfo] | ToolhubError]:
        def info(server: str, name: str) -> ToolInfo:
            hints = {"annotations": {"readOnlyHint": name in self._read_only}}
            return ToolInfo(server, name, None, {}, hints)

        return {"files": [info("files", "read"), info("files", "write")], "web": [info("web", "search")]}

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any] | None = None) -> Result:
        self.began.append(f"{tool} {(arguments or {})['n']}")
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.changed.set()
        self.changed = anyio.Event()
        await self.may_end.wait()
        self.running -= 1
        return Result(text_result(f"{tool} {(arguments or {})['n']}"))

    async def wait_until_running(self, count: int) -> None:
        with anyio.fail_after(WAIT_TIMEOUT_S):
            while self.running < count:
                await self.changed.wait()


@pytest.fixture
async def task() -> AsyncIterator[HubTask]:
    async def fail(arguments: Mapping[str, Any]) -> Json:
        return text_result("no such row", is_error=True)

    async with a_hub(MemoryServer(echo=echo, fail=fail)) as hub, hub.task("t1") as task:
        yield task


async def test_the_definitions_are_openais_schema_with_the_servers_name(task: HubTask) -> None:
    definitions = (await task.to_openai()).definitions
    assert definitions[0] == {
        "type": "function",
        "function": {
            "name": "memory__echo",
            "description": "",
            "parameters": {"type": "object", "properties": {}},
        },
    }
    assert [one["function"]["name"] for one in (await task.to_openai(prefix="never")).definitions] == ["echo", "fail"]


async def test_a_call_is_answered_by_a_tool_message_with_its_id(task: HubTask) -> None:
    tools = await task.to_openai()
    assert await tools.call([function_call("memory__echo", {"text": "hello"}, id="call_7")]) == [
        {"role": "tool", "tool_call_id": "call_7", "content": "hello"}
    ]
    assert await tools.call(None) == []


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (function_call("memory__fail"), "no such row"),
        (function_call("memory__ecko"), "there is no tool 'memory__ecko'; did you mean 'memory__echo'?"),
        (function_call("echo"), "there is no tool 'echo'; did you mean 'memory__echo'?"),
        (function_call("memory__echo", "{"), "the arguments of memory__echo are not valid JSON"),
        (function_call("memory__echo", "[1]"), "the arguments of memory__echo must be a JSON object"),
        ({"id": "call_1", "type": "custom", "custom": {"name": "x", "input": ""}}, "there is no tool 'custom'"),
    ],
)
async def test_what_is_wrong_with_a_call_is_an_answer_for_the_model(task: HubTask, call: Json, answer: str) -> None:
    (message,) = await (await task.to_openai()).call([call])
    assert message["content"].startswith(answer)


async def test_a_server_that_dies_during_a_call_is_an_answer_for_the_model() -> None:
    server = MemoryServer()

    async def die(arguments: Mapping[str, Any]) -> Json:
        server.die()
        await anyio.sleep_forever()
        raise AssertionError

    server.tools["die"] = die
    async with a_hub(server) as hub, hub.task("t1") as task:
        (message,) = await (await task.to_openai()).call([function_call("memory__die")])
    assert "memory" in message["content"] and "die" in message["content"]


async def test_calls_of_a_closed_task_raise(task: HubTask) -> None:
    tools = await task.to_openai()
    await task.aclose()
    with pytest.raises(TaskClosed):
        await tools.call([function_call("memory__echo")])


async def test_a_server_whose_tools_cannot_be_listed_is_an_error_unless_it_is_not_chosen() -> None:
    server = MemoryServer(echo=echo)
    server.fail_next = ["exited with 1"]
    async with a_hub(server) as hub, hub.task("t1") as task:
        with pytest.raises(StartError, match="exited with 1"):
            await task.to_openai()
        assert (await task.to_openai(servers=[])).definitions == []


async def test_only_the_chosen_servers_are_started_and_the_configs_order_stays() -> None:
    server = MemoryServer(echo=echo)
    async with a_hub(server, first={}, second={}, third={}) as hub, hub.task("t1") as task:
        definitions = (await task.to_openai(servers=["third", "first"])).definitions
        assert [one["function"]["name"] for one in definitions] == ["first__echo", "third__echo"]
        assert server.opened == 2


async def test_an_unknown_server_is_an_error_with_names_near_it(task: HubTask) -> None:
    with pytest.raises(ToolNotFound, match="'memori'.*'memory'"):
        await task.to_openai(servers=["memori"])


async def test_two_tools_that_would_have_one_name_are_an_error() -> None:
    class TwoServers(RecordingTask):
        async def tools_by_server(self) -> Mapping[str, list[ToolInfo] | ToolhubError]:
            return {name: [ToolInfo(name, "read", None, {})] for name in ("files", "web")}

    task: Any = TwoServers()
    with pytest.raises(ConfigError, match="tool 'read' of server 'web' has the same name .* prefix='always'"):
        await HubTask.to_openai(task, prefix="never")
    assert len((await HubTask.to_openai(task)).definitions) == 2


async def tools_of(task: Any) -> OpenAITools:
    return await HubTask.to_openai(task)


async def test_calls_to_one_server_keep_their_order_and_servers_run_side_by_side() -> None:
    task = RecordingTask("read", "search")
    tools = await tools_of(task)
    calls = [
        function_call("files__write", {"n": 1}, id="a"),
        function_call("web__search", {"n": 2}, id="b"),
        function_call("files__read", {"n": 3}, id="c"),
    ]
    answers: list[Json] = []

    async def run() -> None:
        answers.extend(await tools.call(calls))

    async with anyio.create_task_group() as running:
        running.start_soon(run)
        await task.wait_until_running(2)
        assert sorted(task.began) == ["search 2", "write 1"]
        task.may_end.set()
    assert task.began[-1] == "read 3"
    assert [(answer["tool_call_id"], answer["content"]) for answer in answers] == [
        ("a", "write 1"),
        ("b", "search 2"),
        ("c", "read 3"),
    ]


async def test_calls_to_one_server_that_only_read_run_side_by_side() -> None:
    task = RecordingTask("read")
    tools = await tools_of(task)
    calls = [function_call("files__read", {"n": number}) for number in range(3)]
    async with anyio.create_task_group() as running:
        running.start_soon(tools.call, calls)
        await task.wait_until_running(3)
        task.may_end.set()
    assert task.most_running == 3


async def test_what_is_not_text_is_named_in_the_answer() -> None:
    blocks = [
        {"type": "text", "text": "a chart"},
        {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "its text"}},
        {"type": "resource_link", "uri": "file:///b.bin"},
    ]

    async def draw(arguments: Mapping[str, Any]) -> Json:
        return {"content": blocks}

    async def count(arguments: Mapping[str, Any]) -> Json:
        return {"content": [], "structuredContent": {"rows": 3}}

    async with a_hub(MemoryServer(draw=draw, count=count)) as hub, hub.task("t1") as task:
        tools = await task.to_openai()
        drawn, counted = await tools.call([function_call("memory__draw"), function_call("memory__count")])
    assert drawn["content"].splitlines() == [
        "a chart",
        "[image image/png: not shown as text]",
        "its text",
        "[resource_link file:///b.bin: not shown as text]",
    ]
    assert counted["content"] == '{"rows": 3}'


async def test_langchain_is_needed_only_where_its_tools_are_asked_for(task: HubTask) -> None:
    assert "langchain_core" not in sys.modules
    with pytest.raises(ToolhubError, match="pip install langchain-core"):
        await task.as_langchain()
