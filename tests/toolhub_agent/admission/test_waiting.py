"""Turns that wait for admission: who is woken, what a cancellation and a failing engine do. On a virtual clock."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.lowlevel import checkpoint
from toolhub_agent.admission.controller import (
    FIRST_REPORT_S,
    LOGGED_WAIT_S,
    PREEMPTION_PAUSE_S,
    AdmittedTurn,
    ProgramAdmission,
    TurnRequest,
)
from toolhub_agent.admission.ledger import MAX_PAUSE_S
from toolhub_agent.llm.concurrency import EngineLoad
from toolhub_agent.types import Usage
from trio.testing import MockClock, wait_all_tasks_blocked

from toolhub.config.llm import AdmissionSettings

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", [("trio", {"clock": MockClock(autojump_threshold=0)})], ids=["virtual"]),
]
ENGINE, OTHER = "http://engine/v1", "http://other/v1"


def opened(*urls: str, capacity: int | None = 1000, enabled: bool = True) -> ProgramAdmission:
    settings = AdmissionSettings(enabled=enabled, capacity_tokens=capacity, target=1)
    return ProgramAdmission(settings, urls or (ENGINE,))


def request(program: str, tokens: int) -> TurnRequest:
    return TurnRequest(program, 3 * tokens)


async def taken(admission: ProgramAdmission, program: str, tokens: int, url: str = ENGINE) -> AdmittedTurn:
    turn = await admission.begin(url, request(program, tokens))
    assert turn is not None
    return turn


async def fill(admission: ProgramAdmission, program: str = "old", tokens: int = 900, url: str = ENGINE) -> None:
    """A program that keeps this many tokens while its tools run. The engine works on a turn that keeps none."""
    await taken(admission, "busy", 0, url)
    (await taken(admission, program, tokens, url)).finish(Usage(tokens, 0))


class Waiter:
    def __init__(self) -> None:
        self.turns: list[AdmittedTurn | None] = []
        self.scope = anyio.CancelScope()

    async def run(self, admission: ProgramAdmission, program: str, tokens: int) -> None:
        with self.scope:
            self.turns.append(await admission.begin(ENGINE, request(program, tokens)))


@asynccontextmanager
async def waiting(admission: ProgramAdmission, program: str = "new", tokens: int = 500) -> AsyncIterator[Waiter]:
    async with anyio.create_task_group() as tasks:
        waiter = Waiter()
        tasks.start_soon(waiter.run, admission, program, tokens)
        tasks.start_soon(admission.run)
        await wait_all_tasks_blocked()
        yield waiter
        await wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_switched_off_it_admits_everything_and_keeps_nothing():
    admission = opened(enabled=False)
    for number in range(100):
        (await taken(admission, f"p{number}", 10**6)).finish(Usage(10**6, 0))
    assert admission.statistics(ENGINE) is None


async def test_a_turn_waits_until_an_older_program_is_done():
    admission = opened()
    await fill(admission)
    async with waiting(admission) as waiter:
        assert waiter.turns == []
        admission.remove("old")
    assert len(waiter.turns) == 1
    statistics = admission.statistics(ENGINE)
    assert statistics is not None and statistics.waits == 1 and statistics.ledger.used == 500


async def test_a_turn_that_waited_too_long_takes_the_place_of_a_program_whose_tools_run():
    admission = opened()
    await fill(admission)
    async with waiting(admission) as waiter:
        await anyio.sleep(MAX_PAUSE_S + 2)
        assert len(waiter.turns) == 1


async def test_a_cancelled_wait_leaves_the_ledger_as_it_was():
    admission = opened()
    await fill(admission)
    before = admission.statistics(ENGINE)
    async with waiting(admission) as waiter:
        waiter.scope.cancel()
    after = admission.statistics(ENGINE)
    assert before is not None and after is not None and after.ledger == before.ledger


async def test_a_turn_that_fails_gives_its_room_back_once():
    admission = opened()
    turn = await taken(admission, "p", 900)
    turn.release()
    turn.release()
    statistics = admission.statistics(ENGINE)
    assert statistics is not None and statistics.ledger.used == 0


async def test_a_request_without_a_conversation_is_done_with_its_turn():
    admission = opened()
    (await taken(admission, "", 900)).finish(Usage(900, 0))
    (await taken(admission, "", 900)).release()
    assert repr(admission) == "<ProgramAdmission [<TokenLedger 0 of 1000 tokens, no programs>]>"


async def test_a_second_turn_of_a_program_at_the_same_time_is_a_program_of_its_own():
    admission = opened()
    first, second = await taken(admission, "p", 300), await taken(admission, "p", 300)
    second.finish(Usage(300, 0))
    first.finish(Usage(300, 0))
    statistics = admission.statistics(ENGINE)
    assert statistics is not None and (statistics.ledger.used, statistics.ledger.acting) == (300, 1)


# --- what engines report ----------------------------------------------------------------------------------------------


async def test_the_first_turn_waits_for_the_engines_first_report():
    admission = opened(capacity=None)
    async with waiting(admission, "p", 500) as waiter:
        assert waiter.turns == []
        admission.note_load(ENGINE, EngineLoad(0, 0, capacity=1000))
    assert len(waiter.turns) == 1
    async with waiting(admission, "q", 600) as late:
        assert late.turns == []


async def test_an_engine_without_a_report_is_waited_for_once():
    admission = opened(capacity=None)
    began = anyio.current_time()
    for number in range(20):
        await fill(admission, f"p{number}", 10**6)
    assert anyio.current_time() - began == pytest.approx(FIRST_REPORT_S)


async def test_turns_that_wait_go_on_when_the_metrics_vanish():
    admission = opened(capacity=None)
    admission.note_load(ENGINE, EngineLoad(0, 0, capacity=1000))
    await fill(admission)
    async with waiting(admission) as waiter:
        assert waiter.turns == []
        admission.note_load(ENGINE, None)
    assert len(waiter.turns) == 1


async def test_preemptions_lower_the_limit_once_in_a_while():
    admission = opened(capacity=1000)
    await fill(admission)
    limits = []
    for seconds, preemptions in ((0, 5), (1, 6), (1, 9), (PREEMPTION_PAUSE_S, 9), (1, 10)):
        await anyio.sleep(seconds)
        admission.note_load(ENGINE, EngineLoad(0, 1, preemptions=preemptions))
        statistics = admission.statistics(ENGINE)
        assert statistics is not None
        limits.append(statistics.ledger.limit)
    assert limits[:4] == [1000, 810, 810, 810] and limits[4] < 810


# --- several endpoints ------------------------------------------------------------------------------------------------


async def test_a_turn_that_waits_for_an_endpoint_that_fails_goes_to_another_one():
    admission = opened(ENGINE, OTHER)
    await fill(admission)
    async with waiting(admission) as waiter:
        admission.endpoint_failed(ENGINE)
    assert waiter.turns == [None]
    await taken(admission, "new", 500, OTHER)
    statistics = admission.statistics(ENGINE)
    assert statistics is not None and statistics.ledger.used == 900


async def test_a_program_that_moves_gives_up_its_place():
    admission = opened(ENGINE, OTHER)
    await fill(admission, "p", 900, ENGINE)
    await taken(admission, "p", 900, OTHER)
    assert [admission.statistics(url).ledger.used for url in (ENGINE, OTHER)] == [0, 900]


async def test_a_new_program_goes_where_it_fits_and_an_old_one_stays_where_its_tokens_are():
    admission = opened(ENGINE, OTHER)

    def chosen(program: str, *, failing: str = "") -> str:
        urls = (ENGINE, OTHER)
        return admission.choose(urls, request(program, 300), is_healthy=lambda url: url != failing)

    assert chosen("new") == ENGINE
    await fill(admission, "p", 900, ENGINE)
    assert chosen("p") == ENGINE
    assert chosen("p", failing=ENGINE) == OTHER
    assert chosen("new") == OTHER
    await fill(admission, "q", 900, OTHER)
    assert chosen("new") == ENGINE  # full too, but the one that it prefers


async def test_hints_are_sent_only_for_programs_with_a_place():
    admission = opened()
    await fill(admission, "old", 500)
    await fill(admission, "young", 400)
    assert admission.may_hint("young") and admission.may_hint("never seen")
    (await taken(admission, "old", 900)).finish(Usage(900, 0))
    assert not admission.may_hint("young")
    assert opened(enabled=False).may_hint("young")


async def test_a_long_wait_is_logged_once(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "toolhub_agent.admission.controller")
    admission = opened()
    await fill(admission)
    async with waiting(admission, "patient"):
        await anyio.sleep(2 * LOGGED_WAIT_S)
        await checkpoint()
    [record] = caplog.records
    assert "the next turn of patient has waited 30 s" in record.getMessage()
