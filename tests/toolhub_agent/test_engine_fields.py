"""The fields of an engine's own go to that engine only."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from llm_stand_in.answers import failed, said
from llm_stand_in.model_server import ModelServer, open_model_server
from toolhub_agent.agent import Agent
from toolhub_agent.kv_hints.signals import NullHints
from toolhub_agent.llm import open_llm
from toolhub_agent.tasklog import TaskLog
from toolhub_agent.types import EngineFields, Task

from tests.toolhub_agent.loop_stage import NotingTools
from toolhub.config import AgentSettings, LlmSettings

pytestmark = pytest.mark.anyio


class FieldsByEndpoint(NullHints):
    """Each endpoint has an engine with a field of its own."""

    def engine_fields(self, session: str, endpoint: str) -> EngineFields:
        return EngineFields(headers={"x-engine": endpoint}, body={"vllm_xargs": {"engine": endpoint}})


async def answered(folder: Path, *servers: ModelServer) -> str:
    settings = LlmSettings(endpoints=[server.url for server in servers], total_timeout_s=20)
    async with open_llm(settings) as llm:
        agent = Agent(
            llm=llm,
            tools=NotingTools(),
            settings=AgentSettings(boxed_answer=False),
            hints=FieldsByEndpoint(),
        )
        result = await agent.run(Task("t1", "Who?"), log=TaskLog.create(folder, "t1", description="Who?"))
    return result.answer


async def test_a_failover_does_not_send_one_engine_s_fields_to_another(tmp_path: Path) -> None:
    with anyio.fail_after(30), open_model_server() as one, open_model_server() as other:
        for server in (one, other):
            server.usual = lambda _: said("Grace Hopper")
        # Whichever of the two is asked first fails: the conversation then moves to the other one.
        asked_first = failed(503)
        one.script(asked_first)
        other.script(asked_first)
        assert await answered(tmp_path, one, other) == "Grace Hopper"
        for server in (one, other):
            assert server.chats
            for seen in server.chats:
                assert seen.body["vllm_xargs"] == {"engine": server.url}
                assert seen.headers["x-engine"] == server.url


async def test_an_engine_that_refuses_its_fields_gets_the_request_without_them_from_then_on(tmp_path: Path) -> None:
    with anyio.fail_after(30), open_model_server() as server:
        server.usual = lambda seen: failed(400, "no such field") if "vllm_xargs" in seen.body else said("Grace Hopper")
        assert await answered(tmp_path, server) == "Grace Hopper"
        assert ["vllm_xargs" in seen.body for seen in server.chats] == [True, False]


async def test_a_refusal_that_is_not_about_the_fields_stays_a_refusal(tmp_path: Path) -> None:
    with anyio.fail_after(30), open_model_server() as server:
        server.usual = lambda _: failed(400, "no such model")
        assert "boxed" in await answered(tmp_path, server)
        assert ["vllm_xargs" in seen.body for seen in server.chats] == [True, False]
