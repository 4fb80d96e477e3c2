"""The same over real sockets, against the stand-in model server (contract test on a stand-in)."""

from __future__ import annotations

import anyio
import httpx2
import pytest
from llm_stand_in.answers import Answer
from llm_stand_in.model_server import ModelServer, open_model_server
from toolhub_agent.kv_hints.hinter import open_hints
from toolhub_agent.kv_hints.signals import AboutToResume, Prompt, ToolWaitStarted, TurnFinished
from toolhub_agent.types import Usage

from toolhub.config.llm import HintSettings

pytestmark = pytest.mark.anyio

MESSAGES = ({"role": "user", "content": "word " * 4000}, {"role": "assistant", "content": "<use_mcp_tool>"})


async def test_going_on_hangs_up_on_a_prefill_that_still_runs():
    with open_model_server() as server:
        server.usual = lambda _seen: Answer(hold=True)
        async with httpx2.AsyncClient(trust_env=False) as http:
            settings = HintSettings(mode="on", lead_time_s=0, timeout_s=10)
            async with open_hints(settings, engine="auto", http=lambda _url: http) as hints:
                hints.durations.observe("s", "t", 0.5)
                hints.signal(TurnFinished("s", Prompt(MESSAGES, {"model": "m"}, server.url), Usage(4000, 5, 0), 0.01))
                hints.signal(ToolWaitStarted("s", (("s", "t"),)))
                with anyio.fail_after(20):
                    await server.wait_until(lambda s: s.running == 1)
                    hints.signal(AboutToResume("s"))
                    await server.wait_until(lambda s: s.running == 0)
                    await until(lambda: hints.statistics().prefetches_aborted == 1)
    assert_is_a_warm(server)


def assert_is_a_warm(server: ModelServer) -> None:
    (chat,) = server.chats
    assert chat.body["max_tokens"] == 1
    assert chat.headers["x-request-id"].startswith("toolhub-prefetch-")


async def until(is_so) -> None:
    while not is_so():
        await anyio.lowlevel.checkpoint()
