"""What does speculative decoding give an agent, and does it lose tool calls? On two real engines.

One engine has the recipe `ngram` of `toolhub llm-command --decode`, the other has none. Both get the same turns of
`turns.py`, one engine at a time, as `toolhub doctor --against` sends its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, field

import anyio
import httpx2
from toolhub_agent.decoding import load_recipes
from toolhub_agent.doctor.decoding import CallTurn, LevelResult, LoadResult, compare_level
from toolhub_agent.doctor.probe import ModelServer, open_model_server

from benchmarks.common.result import Benchmark, Column, Json, Outcome, Table, Target
from benchmarks.decode.turns import COPIED, KINDS, NEW, open_speller, turn_of
from benchmarks.llm.scripted_agent import Served
from benchmarks.questions import QUESTIONS
from testbed.engine.install import installed
from testbed.engine.server import EngineOptions, open_engine

RECIPE = "ngram"
_PATIENCE_S = 300.0


@dataclass(frozen=True)
class DecodeEngines:
    """about: the first words of a note. open: an engine; with the recipe if told so."""

    about: str
    open: Callable[[bool], AbstractAsyncContextManager[Served]]


@dataclass(frozen=True)
class DecodeScale:
    """levels: requests at once, and how many each engine gets per kind of turn. words: of a page."""

    levels: Mapping[int, int] = field(default_factory=lambda: {1: 4, 4: 8, 16: 16})
    words: int = 200
    engines: DecodeEngines | None = None
    """None: vLLM on this machine's CPU."""


@asynccontextmanager
async def _cpu_engine(has_recipe: bool) -> AsyncIterator[Served]:
    flags = load_recipes()[RECIPE].engines["vllm"].flags if has_recipe else {}
    arguments = [word for flag, value in flags.items() for word in (f"--{flag}", json.dumps(value))]
    async with open_engine(EngineOptions(model="mid", arguments=arguments)) as engine:
        yield Served(engine.openai_url, engine.name)


def cpu_engines() -> DecodeEngines:
    """Raises EngineSetupError without `make engine`."""
    installed()
    return DecodeEngines("A real vLLM on the CPU with a model of random weights (35 M parameters)", _cpu_engine)


def run(scale: DecodeScale) -> Outcome:
    engines = scale.engines or cpu_engines()
    found = anyio.run(_measure, scale, engines)
    return _outcome(found, engines.about)


Found = dict[str, list[LevelResult]]


async def _measure(scale: DecodeScale, engines: DecodeEngines) -> Found:
    found: Found = {kind: [] for kind in KINDS}
    async with (
        engines.open(True) as with_recipe,
        engines.open(False) as without,
        open_model_server(with_recipe.settings()) as recipe,
        open_model_server(without.settings()) as plain,
        httpx2.AsyncClient(timeout=_PATIENCE_S, trust_env=False) as http,
    ):
        speller = await open_speller(http, without)
        for at_once, requests in scale.levels.items():
            for kind in KINDS:
                names = [f"{kind}, {number} of {at_once} at once" for number in range(requests)]
                turns = [await turn_of(speller, kind, name, scale.words) for name in names]
                for server in (recipe, plain):
                    await _prepare(server, turns)
                found[kind].append(await compare_level(recipe, plain, at_once, turns, timeout=_PATIENCE_S))
    return found


async def _prepare(server: ModelServer, turns: list[CallTurn]) -> None:
    """An engine prepares each prescribed text when it first comes. That is no decoding."""
    for number, turn in enumerate(turns):
        await server.answer({**turn.body, "max_tokens": 1}, session=f"prepare-{number}", timeout=_PATIENCE_S)


def _outcome(found: Found, about: str) -> Outcome:
    columns = [
        Column("turn", "the call's text is"),
        Column("at_once", "requests at once"),
        Column("plain", "tokens/s without"),
        Column("recipe", f"tokens/s with {RECIPE}"),
        Column("gain", "÷ without", 2),
        Column("accepted", "% of drafts accepted"),
        Column("valid", "% of calls valid with it"),
        Column("valid_plain", "% valid without"),
    ]
    rows = [_row(kind, level) for kind, levels in found.items() for level in levels]
    levels = [level for each in found.values() for level in each]
    lost = sum(max(0, level.plain.valid - level.recipe.valid) for level in levels)
    targets = [
        Target(f"{RECIPE} ÷ none, tokens/s, {COPIED}, 1 at once", found[COPIED][0].gain, 2.0, "×", at_most=False),
        Target(f"{RECIPE} ÷ none, tokens/s, {NEW}, 1 at once", found[NEW][0].gain, 0.95, "×", at_most=False),
        Target(f"valid calls lost with {RECIPE}", lost, 0),
    ]
    config = json.dumps(load_recipes()[RECIPE].engines["vllm"].flags["speculative-config"])
    notes = [
        f"{about}, twice: with --speculative-config '{config}' and without. One works at a time, and they take turns.",
        "Each answer is one tool call in MiroFlow's XML, prescribed by structured outputs and read by the agent loop's "
        "own reader. A call is valid if its text is the prescribed one.",
    ]
    faults = sum((load.faults for level in levels for load in (level.recipe, level.plain)), Counter[str]())
    notes += [f"{count} times: {fault}." for fault, count in faults.items()]
    title = "Decoding with guesses from the prompt, on an engine"
    return Outcome([Table(title, columns, rows)], targets, notes, {"levels": _raw(found)})


def _row(kind: str, level: LevelResult) -> Json:
    accepted = level.recipe.acceptance
    return {
        "turn": kind,
        "at_once": level.at_once,
        "plain": level.plain.tokens_per_s,
        "recipe": level.recipe.tokens_per_s,
        "gain": level.gain,
        "accepted": None if accepted is None else 100 * accepted,
        "valid": _valid_percent(level.recipe),
        "valid_plain": _valid_percent(level.plain),
    }


def _valid_percent(load: LoadResult) -> float:
    return 100 * load.valid / load.requests


def _raw(found: Found) -> list[Json]:
    return [{"turn": kind, **asdict(level)} for kind, levels in found.items() for level in levels]


BENCHMARK = Benchmark(
    "decode",
    QUESTIONS["decode"],
    run,
    full=DecodeScale(),
    quick=DecodeScale(levels={1: 2, 4: 4}, words=60),
)
