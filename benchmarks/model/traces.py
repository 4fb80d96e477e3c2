"""Made-up tasks of a deep-research agent, shaped like those of BrowseComp: what a model server and tools are asked for.

Nothing here is a recording. Each number says where it comes from: *measured* or *read* for those with a source,
*assumed* for the rest, which a reader with logs should replace. The same seed always gives the same task.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from types import MappingProxyType
from typing import TypeVar

Key = TypeVar("Key")

ERROR_TOKENS = 60
"""Tokens of a failed call's text (assumed; the tools cut error texts to 4,000 characters)."""
OMITTED_TOKENS = 12
"""Tokens of an omitted result: a fixed sentence of eight words and its message."""
FRAME_TOKENS = 8
"""Tokens of the message around a turn's results (role markers of chat templates; assumed)."""
LEAST_TURNS = 3


@dataclass(frozen=True, slots=True)
class Spread:
    """A log-normal distribution. sigma: of the logarithm. most: larger values are cut to this."""

    median: float
    sigma: float
    most: float = math.inf

    @property
    def mean(self) -> float:
        """The mean without the cut at `most`."""
        return self.median * math.exp(self.sigma**2 / 2)

    def draw(self, pick: random.Random) -> float:
        return min(pick.lognormvariate(math.log(self.median), self.sigma), self.most)


@dataclass(frozen=True, slots=True)
class ToolKind:
    """share: of all calls. seconds: of one call, without starting a server. failing: share of calls."""

    share: float
    seconds: Spread
    result_tokens: Spread
    failing: float


TOOLS: Mapping[str, ToolKind] = MappingProxyType(
    {
        # Seconds: a public load test of Serper with p50 0.64 s and p95 1.35 s; the agent's client gives up at 5 s,
        # three times. Tokens: ten results of title, link and snippet as JSON (assumed). The rest: assumed.
        "search": ToolKind(0.55, Spread(0.64, 0.455, 15.0), Spread(1100, 0.25, 4000), 0.02),
        # Seconds (assumed): a page through Jina (cut off at 60 s) and a model that extracts from up to 100k tokens.
        # Tokens: the extract is limited to 8,192 (read); median and spread are assumed.
        "scrape": ToolKind(0.33, Spread(6.0, 0.7, 300.0), Spread(700, 0.6, 8192), 0.08),
        # Seconds: code of a sandbox, limited to 300 s (read); median and spread are assumed.
        # Tokens: 20,000 characters at most (read), some 5,000 tokens.
        "python": ToolKind(0.12, Spread(0.8, 0.9, 300.0), Spread(150, 1.0, 5000), 0.05),
    }
)
TURNS = Spread(300, 0.12, 600)
"""Turns of a task: the agents' usual limits are 300 and 600 (read); the spread is assumed."""
CALLS_PER_TURN: Mapping[int, float] = MappingProxyType({1: 0.87, 2: 0.107, 3: 0.023})
"""346 calls in 300 turns: 1.153 each, the number of calls that our own benchmark of searches takes for a task.

A public report about the same agent says some 400 calls. How they are spread over turns is assumed.
"""
DECODE_TOKENS = Spread(75, 0.7, 4096)
"""Thinking and call of a turn (assumed; answers stay in the prompt, so that contexts grow to between 10k and 60k)."""
SYSTEM_TOKENS = 3000
"""Prompt and descriptions of three tool servers (assumed)."""
TASK_TOKENS = Spread(150, 0.4, 1000)
"""Tokens of the question (assumed)."""


@dataclass(frozen=True, slots=True)
class TraceCall:
    """One call. seconds: of the tool alone. result_tokens: of its answer, or of the error's text."""

    kind: str
    seconds: float
    result_tokens: int
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class TraceTurn:
    """One turn. new_tokens: what the prompt adds to the turn before and its answer. decode: tokens of the answer."""

    new_tokens: int
    decode: int
    calls: tuple[TraceCall, ...]


@dataclass(frozen=True, slots=True)
class TaskTrace:
    """One task. Its last turn is the answer and calls nothing."""

    seed: int
    turns: tuple[TraceTurn, ...]

    @property
    def calls(self) -> list[TraceCall]:
        return [call for turn in self.turns for call in turn.calls]

    def with_tools(self, factor: float) -> TaskTrace:
        """Return the same task with the tools' seconds multiplied by `factor`."""
        turns = [
            replace(turn, calls=tuple(replace(call, seconds=factor * call.seconds) for call in turn.calls))
            for turn in self.turns
        ]
        return replace(self, turns=tuple(turns))


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt. reusable: how many tokens from its start equal the prompt before and its answer."""

    tokens: int
    reusable: int


def make_task(seed: int, scale: float = 1.0, turns: int | None = None) -> TaskTrace:
    """Make a task. scale: the size of its context, 1.0 being a full task; smaller for slow or small engines.

    The number of turns and the tokens of a turn shrink with the square root of the scale. The mix of tools, calls per
    turn, error rates and seconds stay. turns: how many, instead of the drawn number.
    """
    if not 0 < scale <= 1:
        raise ValueError(f"scale must be above 0 and at most 1, not {scale}")
    pick = random.Random(f"task {seed}")
    root = math.sqrt(scale)
    # Drawn in any case, so that all later draws stay the same.
    drawn = round(TURNS.draw(pick) * root)
    count = max(LEAST_TURNS, turns or drawn)
    new_tokens = _tokens(SYSTEM_TOKENS + TASK_TOKENS.draw(pick), root)
    made: list[TraceTurn] = []
    for number in range(count):
        is_last = number == count - 1
        calls = () if is_last else tuple(_call(pick, root) for _ in range(_chosen(pick, CALLS_PER_TURN)))
        made.append(TraceTurn(new_tokens, _tokens(DECODE_TOKENS.draw(pick), root), calls))
        new_tokens = sum(call.result_tokens for call in calls) + FRAME_TOKENS
    return TaskTrace(seed, tuple(made))


def make_tasks(tasks: int, seed: int = 0, scale: float = 1.0) -> list[TaskTrace]:
    return [make_task(seed + number, scale) for number in range(tasks)]


def prompts(trace: TaskTrace, keep: int = 5, stride: int = 0) -> list[Prompt]:
    """Return the prompt of each turn if only the last `keep` turns' results are shown; -1: all.

    stride: how many more turns the prompt grows before it is cut; 0 cuts it at every turn. Answers stay, with the
    tokens that the model wrote.
    """
    if keep < -1 or keep == 0 or stride < 0:
        raise ValueError(f"keep must be -1 or at least 1 and stride at least 0, not {keep} and {stride}")
    answers = [turn.decode for turn in trace.turns]
    results = [turn.new_tokens for turn in trace.turns[1:]]
    # The tokens before turn n: whole[n] with all results, cut[n] without any.
    pairs = list(zip(answers, results, strict=False))
    whole = list(accumulate((answer + result for answer, result in pairs), initial=0))
    cut = list(accumulate((answer + OMITTED_TOKENS for answer, _ in pairs), initial=0))
    head = trace.turns[0].new_tokens
    found: list[Prompt] = []
    omitted, tokens = 0, 0
    for number in range(len(trace.turns)):
        before, omitted = omitted, _omitted(number, keep, stride)
        if number == 0:
            reusable = 0
        elif omitted == before:
            reusable = tokens + answers[number - 1]
        else:
            # Equal up to the first result that is omitted only now.
            reusable = head + cut[before] + answers[before]
        tokens = head + cut[omitted] + whole[number] - whole[omitted]
        found.append(Prompt(tokens, reusable))
    return found


def longest(found: Sequence[Prompt]) -> int:
    return max(prompt.tokens for prompt in found)


def _omitted(turns: int, keep: int, stride: int) -> int:
    """How many results are omitted. It depends on the number of turns alone, so the next cut is known beforehand."""
    if keep == -1:
        return 0
    step = stride + 1
    return max(turns - keep, 0) // step * step


def _call(pick: random.Random, root: float) -> TraceCall:
    kind = _chosen(pick, {name: tool.share for name, tool in TOOLS.items()})
    tool = TOOLS[kind]
    seconds, tokens = tool.seconds.draw(pick), _tokens(tool.result_tokens.draw(pick), root)
    if pick.random() < tool.failing:
        return TraceCall(kind, seconds, _tokens(ERROR_TOKENS, root), is_error=True)
    return TraceCall(kind, seconds, tokens)


def _chosen(pick: random.Random, shares: Mapping[Key, float]) -> Key:
    return pick.choices(list(shares), list(shares.values()))[0]


def _tokens(wanted: float, root: float) -> int:
    return max(1, round(wanted * root))
