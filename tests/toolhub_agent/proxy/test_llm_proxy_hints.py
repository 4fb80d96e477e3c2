"""An agent that knows nothing of hints: the proxy sees its requests and its tools' calls, and tells the engine."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest
from llm_stand_in.answers import called, said

from tests.toolhub_agent.proxy.llm_proxy_stage import TASK, is_prefetch, open_stage, xml_call

pytestmark = pytest.mark.anyio
MIROFLOW = {"x-upstream-session-id": "q17-0b0e7a8e-5c55-4d0e-8a43-d2b3f2f6f5a1"}


class Sink:
    """Takes signals down."""

    def __init__(self, inner):
        self.inner, self.signals = inner, []

    def signal(self, signal):
        self.signals.append(signal)
        self.inner.signal(signal)

    def engine_fields(self, session, endpoint):
        return self.inner.engine_fields(session, endpoint)

    @property
    def names(self):
        return [type(each).__name__ for each in self.signals]

    def last(self, name):
        return next(each for each in reversed(self.signals) if type(each).__name__ == name)


@asynccontextmanager
async def watched(*servers, **more):
    async with open_stage(*servers, **more) as stage:
        registry = stage.proxy._registry
        sink = registry._sink = Sink(registry._sink)
        yield stage, sink


async def ask(client, messages, *, stream=False, headers=None):
    answer = await client.chat.completions.create(model="m", messages=messages, stream=stream, extra_headers=headers)
    if not stream:
        return answer.choices[0].message.content
    return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("headers", [None, MIROFLOW], ids=["nameless", "miroflow"])
async def test_a_prompt_is_computed_ahead_while_its_tool_runs(server, tmp_path, stream, headers):
    """The agent's task has another id than its requests name, as MiroFlow's have; the call itself tells."""
    done = tmp_path / "done"
    server.script(said(xml_call(until=str(done), q="x")))
    async with (
        watched(server, folder=tmp_path) as (stage, sink),
        stage.client() as client,
        stage.hub.task("some-id") as task,
        anyio.create_task_group() as tasks,
    ):
        text = await ask(client, TASK, stream=stream, headers=headers)
        tasks.start_soon(task.call, "tools", "search", {"until": str(done), "q": "x"})
        await server.wait_until(lambda s: any(is_prefetch(seen) for seen in s.chats))
        (prefetch,) = [seen for seen in server.chats if is_prefetch(seen)]
        history = [*TASK, {"role": "assistant", "content": text}]
        assert prefetch.body["messages"] == history and prefetch.body["max_tokens"] == 1
        name = server.chats[0].headers["x-smg-routing-key"]
        assert prefetch.headers["x-smg-routing-key"] == name
        done.touch()
        with anyio.fail_after(30):
            while "ToolResultReady" not in sink.names:
                await anyio.sleep(0.01)
        await ask(client, [*history, {"role": "user", "content": "found"}], stream=stream, headers=headers)
        with anyio.fail_after(30):
            while sink.names.count("Resumed") < 2:
                await anyio.sleep(0.01)
    wait, result, resumed = (sink.last(name) for name in ("ToolWaitStarted", "ToolResultReady", "Resumed"))
    assert wait.tools == (("tools", "search"),) and (result.left, result.prompt) == (0, None)
    assert {each.session for each in sink.signals} == {name}
    order = [name for name in sink.names if name != "AboutToResume"]
    assert order[:5] == ["Resumed", "TurnFinished", "ToolWaitStarted", "ToolResultReady", "Resumed"]
    assert resumed.usage.cached_tokens == server.counted[-1].cached


async def test_native_calls_are_known_too_and_come_back_as_calls(server, tmp_path):
    done = tmp_path / "done"
    done.touch()
    server.script(called(("tools-search", {"q": "x", "until": str(done)})))
    async with watched(server, folder=tmp_path) as (stage, sink), stage.client() as client, stage.hub.task() as task:
        stream = await client.chat.completions.create(model="m", messages=TASK, stream=True)
        async for _ in stream:
            pass
        await task.call("tools", "search", {"until": str(done), "q": "x"})
    (message,) = sink.last("TurnFinished").prompt.messages[2:]
    assert message["content"] is None and message["tool_calls"][0]["function"]["name"] == "tools-search"
    assert sink.names.count("ToolWaitStarted") == 1


async def test_a_task_that_is_closed_ends_its_conversations_and_nothing_is_kept(server, tmp_path, monkeypatch):
    monkeypatch.setattr("toolhub_agent.proxy.sessions.CHECK_TASKS_S", 0.02)
    async with watched(server, folder=tmp_path) as (stage, sink), stage.client() as client:
        async with stage.hub.task("q17"):
            await ask(client, TASK, headers=MIROFLOW)
            assert len(stage.proxy._registry) == 1
        with anyio.fail_after(30):
            while "SessionFinal" not in sink.names:
                await anyio.sleep(0.01)
        assert len(stage.proxy._registry) == 0


async def test_a_main_agent_and_its_sub_agent_share_a_header_and_are_two_conversations(server, tmp_path):
    main, sub = [*TASK], [{"role": "system", "content": "You browse."}, {"role": "user", "content": "Look."}]
    async with watched(server, folder=tmp_path) as (stage, sink), stage.client() as client, stage.hub.task("q17"):
        for _ in range(3):
            for messages in (main, sub):
                text = await ask(client, messages, headers=MIROFLOW)
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "found"}]
    name = MIROFLOW["x-upstream-session-id"]
    sessions = [each.session for each in sink.signals if type(each).__name__ == "TurnFinished"]
    assert sessions == [name, f"{name}~2"] * 3
    assert "HistoryRewritten" not in sink.names


async def test_runs_of_one_task_without_names_are_told_apart_by_their_answers(server, tmp_path):
    numbers = iter(range(100))
    server.usual = lambda seen: said(f"answer {next(numbers)}")
    async with watched(server, folder=tmp_path) as (stage, sink), stage.client() as client:
        histories = [[*TASK] for _ in range(3)]
        for _ in range(3):
            for messages in histories:
                text = await ask(client, messages)
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "go on"}]
        assert len(stage.proxy._registry) == 3
    keys = [seen.headers["x-smg-routing-key"] for seen in server.chats]
    assert keys == keys[:3] * 3 and len(set(keys)) == 3 and "HistoryRewritten" not in sink.names


async def test_history_that_was_rewritten_is_told_with_what_was_kept(server, tmp_path):
    async with watched(server, folder=tmp_path) as (stage, sink), stage.client() as client:
        messages = [*TASK]
        for turn in range(3):
            text = await ask(client, messages)
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"result {turn}"}]
        messages[3] = {"role": "user", "content": "Tool result is omitted to save tokens."}
        await ask(client, messages)
        assert len(stage.proxy._registry) == 1
    assert sink.last("HistoryRewritten").kept_messages == 3


async def test_how_the_client_treats_thinking_is_taken_over_from_its_own_requests(server, tmp_path):
    server.usual = lambda seen: said(f"<think>hm {len(seen.body['messages'])}</think>\n\n{xml_call(q=1)}")
    async with watched(server, folder=tmp_path) as (stage, sink), stage.client() as client:
        messages = [*TASK]
        for _ in range(2):
            text = (await ask(client, messages)).partition("</think>")[2].strip()
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "result"}]
    first, second = (each for each in sink.signals if type(each).__name__ == "TurnFinished")
    assert "<think>" in first.prompt.messages[-1]["content"]
    assert second.prompt.messages[-1] == messages[4]


async def test_what_nobody_waits_for_is_not_kept(server, tmp_path):
    """No task of the hub, no call in the answer: the text need not be known after it went through."""
    async with watched(server, folder=tmp_path) as (stage, sink), stage.client() as client:
        await ask(client, TASK)
        assert sink.names == ["AboutToResume", "Resumed"]
        assert stage.metric("toolhub_llm_hint_sessions") == 0


async def test_a_conversation_that_says_nothing_for_long_is_over(server, tmp_path, monkeypatch):
    monkeypatch.setattr("toolhub_agent.proxy.sessions.IDLE_SESSION_S", 0.05)
    async with watched(server, folder=tmp_path) as (stage, sink), stage.client() as client:
        await ask(client, TASK)
        with anyio.fail_after(30):
            while len(stage.proxy._registry):
                await anyio.sleep(0.01)
    assert sink.names[-1] == "SessionFinal"


async def test_only_so_many_conversations_are_remembered(server, tmp_path, monkeypatch):
    monkeypatch.setattr("toolhub_agent.proxy.prefix_index.MAX_SESSIONS", 3)
    async with watched(server, folder=tmp_path) as (stage, sink), stage.client() as client:
        for number in range(6):
            await ask(client, [{"role": "user", "content": str(number)}])
        assert len(stage.proxy._registry) == 3 and sink.names.count("SessionFinal") == 3
