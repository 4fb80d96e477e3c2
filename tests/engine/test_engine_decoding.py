"""Speculative decoding on the real vLLM: the recipe's drafts fit where text is copied, and no tool call is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import replace

import anyio
import httpx2
import pytest
from anyio.from_thread import start_blocking_portal
from toolhub_agent.doctor.decoding import Verdict, compare_level, copy_turn
from toolhub_agent.doctor.probe import ModelServer, open_model_server
from toolhub_agent.profiles import load_profile

from benchmarks.decode.turns import COPIED, NEW, open_speller, turn_of
from benchmarks.llm.scripted_agent import Served
from testbed.engine.server import EngineOptions, EngineServer, open_engine
from toolhub.config import LlmSettings

pytestmark = pytest.mark.anyio
PATIENCE_S = 300


@pytest.fixture(scope="module")
def speculating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """An engine with the flag that `toolhub llm-command cpu --decode ngram` prints."""
    (command,) = load_profile("cpu", decode="ngram").commands
    flag = list(command.argv[command.argv.index("--speculative-config") :][:2])
    log = tmp_path_factory.mktemp("speculating") / "log"
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        opened = open_engine(EngineOptions(arguments=flag), log=log)
        yield stack.enter_context(portal.wrap_async_context_manager(opened))


@pytest.fixture
async def servers(engine: EngineServer, speculating: EngineServer) -> AsyncIterator[tuple[ModelServer, ModelServer]]:
    """With the recipe, and without."""
    with_it, without = (LlmSettings(endpoints=[each.openai_url]) for each in (speculating, engine))
    async with open_model_server(with_it) as recipe, open_model_server(without) as plain:
        yield recipe, plain


async def test_calls_that_copy_a_page_are_all_valid_and_most_drafts_fit(
    servers: tuple[ModelServer, ModelServer], engine: EngineServer
):
    async with httpx2.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
        speller = await open_speller(http, Served(engine.openai_url, engine.name))
        turns = [await turn_of(speller, COPIED, f"page {number}", 60) for number in range(6)]
        others = [await turn_of(speller, NEW, f"new {number}", 60) for number in range(2)]
    with anyio.fail_after(PATIENCE_S):
        copied = await compare_level(*servers, 3, turns, timeout=PATIENCE_S)
        new = await compare_level(*servers, 2, others, timeout=PATIENCE_S)
    assert (copied.recipe.valid, copied.plain.valid) == (6, 6), (copied.recipe.faults, copied.plain.faults)
    assert (new.recipe.valid, new.plain.valid) == (2, 2)
    assert copied.recipe.drafts is not None and copied.plain.drafts is None
    assert copied.recipe.drafts.accepted > 6 * 30  # of 60 words, each of which is a token
    assert new.recipe.drafts is not None and new.recipe.drafts.accepted < copied.recipe.drafts.accepted


async def test_both_engines_take_the_turns_that_the_doctor_sends(servers: tuple[ModelServer, ModelServer]):
    """A model of random weights makes no call of them: it writes anything, or white space where a schema holds it."""
    turns = [copy_turn(number) for number in range(4)]
    short = [replace(turn, body={**turn.body, "max_tokens": 40}) for turn in turns]
    with anyio.fail_after(PATIENCE_S):
        found = await compare_level(*servers, 2, short)
    assert found.verdict is Verdict.UNKNOWN and found.recipe.requests == found.plain.requests == 4
    assert {*found.recipe.faults, *found.plain.faults} <= {"the answer was cut off", "the answer has no call"}
