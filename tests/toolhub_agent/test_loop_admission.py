"""An agent and its sub-agent where the model server's cache holds only one of them."""

from __future__ import annotations

import anyio
import pytest
from llm_stand_in.answers import said
from toolhub_agent.agent import Agent
from toolhub_agent.llm import open_llm

from tests.toolhub_agent.loop_stage import LoopStage, search, use
from toolhub.config import AgentSettings, LlmSettings

pytestmark = pytest.mark.anyio


async def test_a_sub_agent_uses_the_place_of_the_agent_that_waits_for_it(stage: LoopStage):
    ask = use("search_and_browse", {"subtask": "find x"}, server="agent-browsing")
    stage.server.script(said(ask), said(search("x")), said("Done."), said("Report: x is 1."), said(r"\boxed{1}"))
    settings = AgentSettings(sub_agents={"browsing": {"servers": ["search"], "max_turns": 3}})  # type: ignore[dict-item]
    llm_settings = LlmSettings(endpoints=[stage.server.url], admission={"enabled": True, "capacity_tokens": 1})  # type: ignore[arg-type]
    with anyio.fail_after(60):
        async with open_llm(llm_settings) as llm:
            result = await Agent(llm=llm, tools=stage.tools, settings=settings).run("Who?")
            statistics = llm.pool.admission.statistics(stage.server.url)
            left = repr(llm.pool.admission)
    assert result.answer == "1"
    assert statistics is not None and statistics.waits == 0
    assert statistics.ledger.pauses == {"its sub-agent has its place": 1}
    assert left == "<ProgramAdmission [<TokenLedger 0 of 0 tokens, no programs>]>"
