"""What requests cost at a running engine: samples for `calibrate`, and conversations that test what it found.

    measured = await measure_costs(served)
    print(measured.calibration, f"{measured.held_out_error:.0%}")

Prompts are random token ids, so the engine's cache has of them what was sent before and nothing else. Cached beginnings
are multiples of 128 tokens, which is a whole number of blocks for every usual block size.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import TypeVar

import anyio
import httpx2

from benchmarks.common.measure import median
from benchmarks.llm.scripted_agent import Served
from benchmarks.model.cache import blocks_of
from benchmarks.model.costs import Calibration, EngineCosts, Sample, calibrate
from benchmarks.model.engine import Clock, Engine, EngineRequest

BUDGET = 2048
"""Tokens of a step: vLLM's max_num_batched_tokens on CPUs (/server_info of 0.32). Most accelerators have 8192."""
# Ids of text in every vocabulary. Special tokens have lower or far higher ids.
_IDS = range(300, 4000)
# The longest prefill takes some seconds.
_PATIENCE_S = 300.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a `Sample`: `batch` requests at once, each with cached + prefill tokens and `decode` answered."""

    prefill: int
    cached: int
    decode: int
    batch: int = 1


@dataclass(frozen=True, slots=True)
class MeasuredTurn:
    """A turn. prompt: tokens, of which the last turn had `reusable`. pause_s: after the answer."""

    prompt: int
    reusable: int
    decode: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class ConversationMix:
    """Conversations that begin together. Each prompt extends the last one.

    first: tokens of the first prompts. grows: tokens that a turn adds. Both are drawn from these multiples of 128.
    decode: the least and the most.
    """

    name: str
    conversations: int
    turns: int
    first: tuple[int, ...]
    grows: tuple[int, ...]
    decode: tuple[int, int]
    pause_s: tuple[float, float] = (0.02, 0.2)

    def talks(self) -> list[list[MeasuredTurn]]:
        """The same each time."""
        pick = random.Random(self.name)
        return [self._talk(pick) for _ in range(self.conversations)]

    def _talk(self, pick: random.Random) -> list[MeasuredTurn]:
        found, before = [], 0
        for _ in range(self.turns):
            prompt = before + pick.choice(self.grows if before else self.first)
            found.append(MeasuredTurn(prompt, before, pick.randint(*self.decode), pick.uniform(*self.pause_s)))
            before = prompt
        return found


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """What is measured. repeats: of each sample and each mix; the median counts."""

    shapes: Sequence[Shape]
    mixes: Sequence[ConversationMix]
    repeats: int = 3


PLAN = SamplingPlan(
    [
        *(Shape(prefill, 0, 1) for prefill in (64, 256, 700, 1500, 4000, 8000)),
        *(Shape(prefill, 0, 1, 4) for prefill in (300, 1000)),
        *(Shape(prefill, cached, 1) for cached in (2048, 6144) for prefill in (200, 900)),
        Shape(200, 6144, 1, 4),
        *(Shape(100, 0, decode) for decode in (20, 100, 300)),
        *(Shape(100, 0, 100, batch) for batch in (2, 4)),
        *(Shape(100, 6144, 80, batch) for batch in (1, 2, 4)),
    ],
    [
        ConversationMix("3 conversations of long prompts", 3, 4, (2048, 3072), (768, 1024, 1536), (20, 80)),
        ConversationMix("4 conversations of short prompts", 4, 4, (512, 1024), (128, 256, 384), (10, 120)),
        ConversationMix("1 conversation", 1, 4, (3072,), (384, 768), (40, 120)),
    ],
)
"""Contexts of up to 8,000 tokens, and up to four at once."""
QUICK_PLAN = SamplingPlan(
    [Shape(*each) for each in ((100, 0, 1), (1500, 0, 1), (5000, 0, 1), (300, 0, 1, 3), (200, 2048, 1))]
    + [Shape(*each) for each in ((100, 0, 40), (100, 0, 40, 3), (100, 2048, 30), (100, 2048, 30, 3))],
    [ConversationMix("3 conversations", 3, 3, (512, 1024), (128, 512), (10, 40), (0.01, 0.05))],
    repeats=2,
)
"""A plan that takes some seconds; it shows only that calibration works."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A mix that the fit has not seen: mean seconds of a request, predicted and measured."""

    name: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """The relative distance between prediction and measurement."""
        return abs(self.predicted_s - self.measured_s) / self.measured_s


@dataclass(frozen=True)
class Measured:
    """What `measure_costs` found. budget: tokens per step, as the fit and the predictions assume."""

    calibration: Calibration
    budget: int
    samples: list[Sample] = field(default_factory=list)
    held_out: list[HeldOut] = field(default_factory=list)

    @property
    def held_out_error(self) -> float:
        """Mean of the held-out errors; nan without any."""
        return fmean(each.error for each in self.held_out) if self.held_out else math.nan


async def measure_costs(
    served: Served,
    plan: SamplingPlan = PLAN,
    budget: int = BUDGET,
    *,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> Measured:
    """Calibrate by the plan's samples, and compare the plan's mixes with what the simulator then predicts.

    The engine's usage says how many tokens were cached; the rest is prefill. Samples and mixes take turns, so a machine
    that is slow for a while affects both. budget: the engine's tokens per step. The
    engine must have nothing else to do. Raises RuntimeError if the engine does not say that a beginning sent before was
    cached, or writes fewer tokens than asked for; httpx2.HTTPError if it refuses.
    """
    mixed: defaultdict[ConversationMix, list[float]] = defaultdict(list)
    async with _Asker(served, transport) as asker:
        sampler = await _Sampler.prepare(asker, plan.shapes)
        for _ in range(plan.repeats):
            await sampler.take()
            for mix in plan.mixes:
                mixed[mix].append(await _mean_request_s(asker, mix))
    samples = sampler.samples()
    found = calibrate(samples, budget)
    held_out = [HeldOut(mix.name, median(times), predicted_s(mix, found.costs, budget)) for mix, times in mixed.items()]
    return Measured(found, budget, samples, held_out)


class _Sampler:
    """Takes each shape once a time. beginnings: what the engine has seen, by length, enough for the largest batch."""

    def __init__(self, asker: _Asker, shapes: Sequence[Shape], beginnings: dict[int, list[list[int]]]) -> None:
        self._asker = asker
        self._shapes = shapes
        self._beginnings = beginnings
        self._times: defaultdict[Shape, list[float]] = defaultdict(list)

    @classmethod
    async def prepare(cls, asker: _Asker, shapes: Sequence[Shape]) -> _Sampler:
        beginnings = {}
        for cached in {shape.cached for shape in shapes}:
            wanted = max(shape.batch for shape in shapes if shape.cached == cached)
            beginnings[cached] = [_fresh(cached) for _ in range(wanted)]
            for beginning in beginnings[cached] if cached else ():
                # One token more, because the last token of a prompt is always computed.
                await asker.ask(beginning + _fresh(1), 1)
        return cls(asker, shapes, beginnings)

    async def take(self) -> None:
        for shape in self._shapes:
            prompts = [each + _fresh(shape.prefill) for each in self._beginnings[shape.cached][: shape.batch]]
            began = anyio.current_time()
            cached = await _all_of([partial(self._asker.ask, prompt, shape.decode) for prompt in prompts])
            seconds = anyio.current_time() - began
            self._times[_found(shape, cached)].append(seconds)

    def samples(self) -> list[Sample]:
        return [
            Sample(each.prefill, each.cached, each.decode, each.batch, median(times))
            for each, times in self._times.items()
        ]


def _found(shape: Shape, cached: Sequence[int]) -> Shape:
    """Return the shape that the engine reports."""
    if shape.cached and not min(cached):
        raise RuntimeError(
            f"the engine does not say that it had cached any of {shape.cached} tokens sent before: its cache is too "
            "small or off, or it lacks --enable-prompt-tokens-details (SGLang: --enable-cache-report)"
        )
    mean = round(sum(cached) / len(cached))
    return replace(shape, prefill=shape.prefill + shape.cached - mean, cached=mean)


# --- held-out mixes ---------------------------------------------------------------------------------------------------


async def _mean_request_s(asker: _Asker, mix: ConversationMix) -> float:
    talks = await _all_of([partial(_talk, asker, turns) for turns in mix.talks()])
    return fmean(each for talk in talks for each in talk)


async def _talk(asker: _Asker, turns: Sequence[MeasuredTurn]) -> list[float]:
    """Seconds of each request."""
    prompt: list[int] = []
    found = []
    for turn in turns:
        prompt = prompt + _fresh(turn.prompt - turn.reusable)
        began = anyio.current_time()
        await asker.ask(prompt, turn.decode)
        found.append(anyio.current_time() - began)
        await anyio.sleep(turn.pause_s)
    return found


def predicted_s(mix: ConversationMix, costs: EngineCosts, budget: int) -> float:
    """Predict the mean seconds of a mix's requests at a modelled engine whose cache holds everything."""
    clock, talks = Clock(), mix.talks()
    engine = Engine(
        clock, costs, blocks=sum(blocks_of(talk[-1].prompt + mix.decode[1]) for talk in talks), budget=budget
    )
    times: list[float] = []

    def ask(name: str, turns: Sequence[MeasuredTurn]) -> None:
        def answered(request: EngineRequest) -> None:
            times.append(clock.now - request.submitted)
            clock.at(clock.now + turns[0].pause_s, lambda: ask(name, turns[1:]))

        if turns:
            turn = turns[0]
            engine.request(name, turn.prompt, reusable=turn.reusable, decode=turn.decode, done=answered)

    for number, talk in enumerate(talks):
        ask(f"{number}", talk)
    clock.run()
    return fmean(times)


# --- requests ---------------------------------------------------------------------------------------------------------


class _Asker:
    """Asks the engine by token ids, which spares it the tokenizer; enter it to open its connections."""

    def __init__(self, served: Served, transport: httpx2.AsyncBaseTransport | None) -> None:
        headers = {"Authorization": f"Bearer {served.key}"} if served.key else {}
        self._http = httpx2.AsyncClient(headers=headers, transport=transport, trust_env=False, timeout=_PATIENCE_S)
        self._served = served

    async def __aenter__(self) -> _Asker:
        await self._http.__aenter__()
        # The first request of a client and of an engine is slower.
        await self.ask(_fresh(500), 8)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.aclose()

    async def ask(self, prompt: list[int], decode: int) -> int:
        """Send a prompt. Return how many of its tokens were cached. The answer has exactly `decode` tokens."""
        length = {"max_tokens": decode, "min_tokens": decode, "ignore_eos": True}
        body = {"model": self._served.model, "prompt": prompt, "temperature": 0, "stream": False, **length}
        answer = await self._http.post(f"{self._served.url}/completions", json=body)
        answer.raise_for_status()
        usage = answer.json()["usage"]
        if (usage["prompt_tokens"], usage["completion_tokens"]) != (len(prompt), decode):
            raise RuntimeError(f"{len(prompt)} and {decode} tokens were asked for, and the engine counts {usage}")
        return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def _fresh(tokens: int) -> list[int]:
    return random.choices(_IDS, k=tokens)


async def _all_of(asked: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Await all at once and return the results in order. Raises the first error itself, not a group."""
    found: dict[int, T] = {}

    async def put(number: int) -> None:
        found[number] = await asked[number]()

    try:
        async with anyio.create_task_group() as group:
            for number in range(len(asked)):
                group.start_soon(put, number)
    except ExceptionGroup as exc:
        raise exc.exceptions[0] from exc  # a request that failed is one of these itself
    return [found[number] for number in range(len(asked))]
