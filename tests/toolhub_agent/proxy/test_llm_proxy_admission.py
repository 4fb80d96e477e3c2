"""Agents that know nothing of toolhub, admitted by the LLM proxy of a served hub."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest
from llm_stand_in.answers import Answer
from llm_stand_in.model_server import ModelServer, open_model_server
from openai.types.chat import ChatCompletionMessageParam
from rich.console import Console

from tests.toolhub_agent.proxy.llm_proxy_stage import ProxyStage, open_stage, xml_call
from toolhub.cli.tasks import tasks_table

pytestmark = pytest.mark.anyio
Json = dict[str, Any]
AGENTS, TURNS = 6, 5
SYSTEM: ChatCompletionMessageParam = {"role": "system", "content": "You search the web and answer. " * 20}


async def agent(stage: ProxyStage, number: int, *, stream: bool = True) -> None:
    """An agent with an SDK. It names no session: the proxy finds its conversation by the messages."""
    messages: list[ChatCompletionMessageParam] = [SYSTEM, {"role": "user", "content": f"Task {number}"}]
    async with stage.client() as client:
        for turn in range(TURNS):
            messages.append({"role": "assistant", "content": await ask(client, messages, stream=stream)})
            messages.append({"role": "user", "content": f"Result {number}.{turn} of a tool. " * 30})
            await anyio.sleep(0.02)


async def ask(client: openai.AsyncOpenAI, messages: list[ChatCompletionMessageParam], *, stream: bool) -> str:
    if not stream:
        answer = await client.chat.completions.create(model="m", messages=messages)
        return answer.choices[0].message.content or ""
    pieces = await client.chat.completions.create(model="m", messages=messages, stream=True)
    return "".join([piece.choices[0].delta.content or "" async for piece in pieces if piece.choices])


async def wait_for(is_so: Callable[[], bool]) -> None:
    """The proxy counts a turn's end when the client has the answer already."""
    with anyio.fail_after(30):
        while not is_so():
            await anyio.sleep(0.01)


def script(server: ModelServer) -> None:
    """Every answer is another one, so that conversations differ."""
    server.usual = lambda seen: Answer(pieces=(f"answer {len(server.chats)} " * 4,))


async def run_agents(stage: ProxyStage, *, stream: bool = True) -> None:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(AGENTS):
                tasks.start_soon(lambda each: agent(stage, each, stream=stream), number)


def admission(**more: Any) -> Json:
    return {"admission": {"enabled": True, **more}, "hints": {"mode": "auto"}, "metrics_interval_s": 0.05}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_agents_that_do_not_fit_wait_and_all_are_answered(tmp_path: Path, stream: bool):
    with open_model_server() as server:
        script(server)
        async with open_stage(server, folder=tmp_path, **admission(capacity_tokens=1500, max_pause_s=1)) as stage:
            await run_agents(stage, stream=stream)
            assert len(server.chats) == AGENTS * TURNS
            assert stage.metric("toolhub_llm_admission_waits_total") > 0
            await wait_for(lambda: stage.metric("toolhub_llm_programs", state="running") == 0)
            assert stage.metric("toolhub_llm_cache_tokens", kind="limit") == 1425
            assert stage.metric("toolhub_llm_cache_tokens", kind="used") <= 1425


async def test_nothing_waits_where_all_agents_fit(tmp_path: Path):
    with open_model_server() as server:
        script(server)
        server.load.blocks = 10_001
        async with open_stage(server, folder=tmp_path, **admission()) as stage:
            await run_agents(stage)
            assert stage.metric("toolhub_llm_admission_waits_total") == 0
            assert stage.metric("toolhub_llm_admission_waited_seconds_total") == 0
            assert stage.metric("toolhub_llm_cache_tokens", kind="capacity") == 160_000
            await wait_for(
                lambda: stage.metric("toolhub_llm_programs", state="acting") == AGENTS
            )  # they use tools in an unknown form


async def test_switched_off_there_is_no_metric_of_it(tmp_path: Path):
    with open_model_server() as server:
        async with open_stage(server, folder=tmp_path) as stage:
            await run_agents(stage)
            assert not [family for family in stage.proxy.collect() if family.name == "toolhub_llm_programs"]


async def test_the_metrics_say_who_waits_and_why(tmp_path: Path):
    with open_model_server() as server:
        async with open_stage(server, folder=tmp_path, **admission(capacity_tokens=400)) as stage:
            async with stage.client() as client, anyio.create_task_group() as tasks:
                server.script(Answer(hold=True))
                tasks.start_soon(lambda: ask(client, [{"role": "user", "content": "first " * 300}], stream=True))
                await server.wait_until(lambda each: each.running == 1)
                tasks.start_soon(lambda: ask(client, [{"role": "user", "content": "second " * 300}], stream=True))
                await wait_for(lambda: stage.metric("toolhub_llm_programs", state="waiting") == 1)
                await wait_for(lambda: stage.metric("toolhub_llm_paused_seconds", reason="the cache is full") > 0)
                tasks.cancel_scope.cancel()
            await wait_for(lambda: stage.metric("toolhub_llm_programs", state="waiting") == 0)
            assert len(server.chats) == 1, "a client that left was sent to the engine"


async def test_toolhub_tasks_says_which_task_is_paused_and_why(tmp_path: Path):
    with open_model_server() as server:
        async with open_stage(server, folder=tmp_path, **admission(capacity_tokens=400)) as stage, stage.hub.task("t1"):
            async with stage.client() as client, anyio.create_task_group() as tasks:
                server.script(Answer(hold=True))
                tasks.start_soon(lambda: ask(client, [{"role": "user", "content": "first " * 300}], stream=True))
                await server.wait_until(lambda each: each.running == 1)
                assert [task.paused for task in stage.hub.statistics().tasks] == [""]
                mine = client.with_options(default_headers={"x-session-id": "t1-main"})
                tasks.start_soon(lambda: ask(mine, [{"role": "user", "content": "second " * 300}], stream=True))
                await wait_for(lambda: stage.metric("toolhub_llm_programs", state="waiting") == 1)
                (task,) = dataclasses.asdict(stage.hub.statistics())["tasks"]
                tasks.cancel_scope.cancel()
    assert re.fullmatch(r"\d+ s: the cache is full, \d+% of the cache in use", task["paused"])
    told = io.StringIO()
    Console(file=told, width=200).print(tasks_table([task]))
    assert task["paused"] in told.getvalue()


async def test_a_client_that_leaves_in_the_middle_of_its_turn_gives_its_room_back(tmp_path: Path):
    with open_model_server() as server:
        server.script(Answer(hold=True))
        async with open_stage(server, folder=tmp_path, **admission(capacity_tokens=400)) as stage:
            async with stage.client() as client, anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: ask(client, [{"role": "user", "content": "first " * 300}], stream=True))
                await server.wait_until(lambda each: each.running == 1)
                tasks.cancel_scope.cancel()
            with anyio.fail_after(30):
                async with stage.client() as client:
                    await ask(client, [{"role": "user", "content": "second " * 300}], stream=True)


async def test_a_conversation_that_asks_for_no_further_tools_gives_its_place_up(tmp_path: Path):
    with open_model_server() as server:
        server.script(Answer(pieces=(xml_call(q="x"),)), Answer(pieces=("the answer",)))
        async with open_stage(server, folder=tmp_path, **admission(capacity_tokens=100_000)) as stage:
            async with stage.client() as client:
                messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Who?"}]
                messages.append({"role": "assistant", "content": await ask(client, messages, stream=True)})
                await wait_for(lambda: stage.metric("toolhub_llm_programs", state="acting") == 1)
                await ask(client, [*messages, {"role": "user", "content": "found"}], stream=True)
            await wait_for(lambda: stage.metric("toolhub_llm_cache_tokens", kind="used") == 0)


async def test_a_single_chat_request_keeps_no_place(tmp_path: Path):
    with open_model_server() as server:
        async with open_stage(server, folder=tmp_path, **admission(capacity_tokens=400)) as stage:
            async with stage.client() as client:
                for number in range(3):
                    await ask(client, [{"role": "user", "content": f"{number} " * 300}], stream=False)
            assert stage.metric("toolhub_llm_admission_waits_total") == 0


async def test_a_text_completion_is_done_when_it_is_answered(tmp_path: Path):
    with open_model_server() as server:
        async with open_stage(server, folder=tmp_path, **admission(capacity_tokens=400)) as stage:
            async with stage.client() as client:
                for _ in range(3):
                    await client.completions.create(model="m", prompt="once " * 300)
            await wait_for(lambda: stage.metric("toolhub_llm_cache_tokens", kind="used") == 0)
