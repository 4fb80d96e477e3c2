"""Known costs are found again by asking, and what is said of the engine is what it says itself.

The engine is the modelled one behind real requests, in virtual time.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import astuple
from typing import Any

import anyio
import httpx2
import pytest
from anyio.abc import TaskGroup
from trio.testing import MockClock

from benchmarks.llm.scripted_agent import Served
from benchmarks.model.cache import BLOCK
from benchmarks.model.costs import EngineCosts, Sample
from benchmarks.model.engine import Clock, Engine, EngineRequest
from benchmarks.model.samples import (
    PLAN,
    QUICK_PLAN,
    ConversationMix,
    HeldOut,
    Measured,
    SamplingPlan,
    Shape,
    measure_costs,
)

COSTS = EngineCosts(0.02, 1e-4, 6e-8, 2e-3, 1e-6, 0.01)
SERVED = Served("http://engine/v1", key="a key")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", [("trio", {"clock": MockClock(autojump_threshold=0)})], ids=["trio"]),
]


class LiveClock(Clock):
    """The simulator's clock as the event loop's: what is to happen does when its time has come."""

    def __init__(self, group: TaskGroup) -> None:
        self._group = group

    @property
    def now(self) -> float:  # type: ignore[override]  # read only
        return anyio.current_time()

    def at(self, time: float, then: Callable[[], None]) -> None:
        self._group.start_soon(self._later, time, then)

    async def _later(self, time: float, then: Callable[[], None]) -> None:
        await anyio.sleep_until(time)
        then()


class Completions:
    """POST /v1/completions of a modelled engine, as an ASGI app. asked: the bodies."""

    def __init__(self, group: TaskGroup, blocks: int, usage: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.asked: list[dict[str, Any]] = []
        self._engine = Engine(LiveClock(group), COSTS, blocks=blocks, budget=2048)
        self._usage = usage
        self._names = itertools.count()
        self._idle: dict[str, list[int]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert (scope["path"], dict(scope["headers"])[b"authorization"]) == ("/v1/completions", b"Bearer a key")
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body", False)
        self.asked.append(json.loads(body))
        answer = json.dumps({"usage": self._usage(await self._answer(self.asked[-1]))}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": answer})

    async def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt, decode = body["prompt"], body["max_tokens"]
        known = max(self._idle, key=lambda name: common(self._idle[name], prompt), default=None)
        reusable = common(self._idle[known], prompt) if known else 0
        name = known if known and reusable >= BLOCK else f"{next(self._names)}"
        self._idle.pop(name, None)
        done = anyio.Event()
        found: EngineRequest = self._engine.request(
            name, len(prompt), reusable=reusable, decode=decode, done=lambda _: done.set()
        )
        await done.wait()
        self._idle[name] = prompt
        details = {"cached_tokens": found.cached}
        return {"prompt_tokens": len(prompt), "completion_tokens": decode, "prompt_tokens_details": details}


def common(one: list[int], other: list[int]) -> int:
    """How many tokens they begin with alike."""
    alike = (left == right for left, right in zip(one, other, strict=False))
    return sum(1 for _ in itertools.takewhile(bool, alike))


@asynccontextmanager
async def open_completions(
    blocks: int = 20_000, usage: Callable[[dict[str, Any]], dict[str, Any]] = dict
) -> AsyncIterator[tuple[Completions, httpx2.ASGITransport]]:
    async with anyio.create_task_group() as group:
        app = Completions(group, blocks, usage)
        yield app, httpx2.ASGITransport(app=app)
        group.cancel_scope.cancel()


@pytest.mark.parametrize("plan", [PLAN, QUICK_PLAN], ids=["PLAN", "QUICK_PLAN"])
async def test_known_costs_are_found_again_and_predict_what_was_held_out(plan: SamplingPlan) -> None:
    async with open_completions() as (_, transport):
        measured = await measure_costs(SERVED, plan, transport=transport)
    assert astuple(measured.calibration.costs) == pytest.approx(astuple(COSTS), rel=0.03)
    assert measured.calibration.samples == len(measured.samples) == len(plan.shapes)
    assert measured.calibration.error < 0.01
    assert [each.name for each in measured.held_out] == [mix.name for mix in plan.mixes]
    assert measured.held_out_error < 0.02


async def test_with_a_wrong_budget_the_held_out_error_says_so() -> None:
    async with open_completions() as (_, transport):
        right, wrong = [await measure_costs(SERVED, PLAN, budget, transport=transport) for budget in (2048, 64)]
    assert wrong.held_out_error > 3 * right.held_out_error


async def samples_of(plan: SamplingPlan, transport: httpx2.AsyncBaseTransport) -> list[Sample]:
    return (await measure_costs(SERVED, plan, transport=transport)).samples


async def test_samples_are_what_the_engine_says() -> None:
    plan = SamplingPlan([Shape(100, 0, 5), Shape(100, 2048, 5, 2), Shape(50, 2048, 1)], (), repeats=2)
    async with open_completions() as (app, transport):
        found = await samples_of(plan, transport)
    assert [(each.prefill, each.cached, each.decode, each.batch) for each in found] == [
        (100, 0, 5, 1),
        (100, 2048, 5, 2),
        (50, 2048, 1, 1),
    ]
    assert all(body["min_tokens"] == body["max_tokens"] and body["ignore_eos"] for body in app.asked)


async def test_what_a_cache_lost_counts_as_prefill() -> None:
    def half(usage: dict[str, Any]) -> dict[str, Any]:
        return {
            **usage,
            "prompt_tokens_details": {"cached_tokens": usage["prompt_tokens_details"]["cached_tokens"] // 2},
        }

    async with open_completions(usage=half) as (_, transport):
        (found,) = await samples_of(SamplingPlan([Shape(100, 2048, 1)], (), repeats=1), transport)
    assert (found.prefill, found.cached) == (100 + 1024, 1024)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"prompt_tokens_details": None}, "does not say that it had cached"),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, "does not say that it had cached"),
        ({"completion_tokens": 3}, "tokens were asked for"),
    ],
)
async def test_an_engine_that_does_not_do_what_is_asked_is_refused(said: dict[str, Any], message: str) -> None:
    async with open_completions(usage=lambda usage: usage | said) as (_, transport):
        with pytest.raises(RuntimeError, match=message):
            await samples_of(SamplingPlan([Shape(100, 2048, 5)], (), repeats=1), transport)


async def test_one_error_of_several_requests_at_once_comes_as_it_is() -> None:
    def fewer(usage: dict[str, Any]) -> dict[str, Any]:
        return usage | {"completion_tokens": min(usage["completion_tokens"], 19)}

    async with open_completions(usage=fewer) as (_, transport):
        with pytest.raises(RuntimeError, match="100 and 20 tokens were asked for"):
            await samples_of(SamplingPlan([Shape(100, 0, 20, 3)], (), repeats=1), transport)


async def test_a_mix_is_the_same_each_time_and_its_prompts_grow() -> None:
    for mix in PLAN.mixes:
        assert mix.talks() == mix.talks()
        for talk in mix.talks():
            assert [turn.reusable for turn in talk] == [0, *(turn.prompt for turn in talk[:-1])]
            assert all(turn.prompt > turn.reusable and turn.reusable % 128 == 0 for turn in talk)
            assert talk[-1].prompt <= 8192
    one, other = (ConversationMix(name, 2, 3, (512, 1024), (128, 256), (10, 90)) for name in ("one", "other"))
    assert one.talks() != other.talks()


async def test_the_held_out_error_is_the_mean_distance_over_the_measured() -> None:
    async with open_completions() as (_, transport):
        measured = await measure_costs(SERVED, SamplingPlan([Shape(100, 0, 2)], (), repeats=1), transport=transport)
    assert math.isnan(measured.held_out_error)
    found = Measured(measured.calibration, 2048, [], [HeldOut("a", 1.0, 1.1), HeldOut("b", 2.0, 1.4)])
    assert found.held_out_error == pytest.approx(0.2)
