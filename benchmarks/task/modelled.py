"""Tasks on the modelled engine.

First those that the real engine has played, which shows how far off the model is. Then whole tasks at large sites,
which only the modelled engine can play.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, field, replace
from statistics import fmean

from benchmarks.common.measure import median
from benchmarks.common.result import Json
from benchmarks.model.costs import A100_COSTS, EngineCosts
from benchmarks.model.play import DROP_IN, MIROFLOW, TOOLHUB, RuntimePolicy, Site, play
from benchmarks.model.traces import FRAME_TOKENS, TaskTrace, TraceTurn, make_tasks
from benchmarks.task.replay import Round
from benchmarks.task.times import TaskTimes

ADMISSION = replace(TOOLHUB, name="toolhub, with admission", has_admission=True)
PROXY_ADMISSION = replace(MIROFLOW, name="miroflow, with admission by the LLM proxy", has_admission=True)
POLICIES = (MIROFLOW, DROP_IN, TOOLHUB, ADMISSION)


@dataclass(frozen=True)
class Modelled:
    """Seconds per task, means over all rounds."""

    task_s: float
    llm_s: float


def modelled(variant: str, rounds: Sequence[Round], site: Site, start_cpu_s: float) -> Modelled:
    """start_cpu_s: CPU seconds of starting a tool server."""
    policy = replace(next(each for each in POLICIES if each.name == variant), start_cpu_s=(start_cpu_s, start_cpu_s))
    found: list[Json] = [
        play([_as_played(*each) for each in zip(one.traces, one.times, strict=True)], policy, site).summary()
        for one in rounds
    ]
    return Modelled(fmean(each["task_s"] for each in found), fmean(each["llm_s"] for each in found))


def start_cpu_s(spawning: Sequence[Round]) -> float:
    """Return the CPU seconds of each server start in MiroFlow's pattern, with the client's part: the median round."""
    return median([one.cpu_s / one.starts for one in spawning])


def site_of(costs: EngineCosts, blocks: int, budget: int, cores: int) -> Site:
    return Site(engines=1, blocks=blocks, budget=budget, cores=cores, costs=costs)


def _as_played(trace: TaskTrace, times: TaskTimes) -> TaskTrace:
    """Return the trace with the engine's own token counts of the answers and the first prompt, if it reports them."""
    turns: list[TraceTurn] = []
    new_tokens = times.turns[0].prompt
    for turn, played in zip(trace.turns, times.turns, strict=True):
        turns.append(TraceTurn(new_tokens, played.written, turn.calls))
        new_tokens = sum(call.result_tokens for call in turn.calls) + FRAME_TOKENS
    return TaskTrace(trace.seed, tuple(turns))


# --- large sites ----------------------------------------------------------------------------------------------------

_ROOM = 8
"""How many conversations at once fit into the smaller cache. Both runtimes have an option for it."""
_80_GB, _141_GB = 16_000, 44_000
"""Blocks of 16 tokens that are left beside a model of 60 GB (30 B parameters, 16 bit) and some room, with 98 kB for a
token (48 layers, 4 heads of keys and values)."""


@dataclass(frozen=True)
class SiteCase:
    """Tasks that begin at once at a site, under several policies.

    gain: how many times faster a task should be with admission than in MiroFlow's pattern.
    """

    name: str
    tasks: int
    site: Site
    policies: Sequence[RuntimePolicy] = POLICIES
    gain: float = 2.0


def _site(blocks: int, cores: int, costs: EngineCosts | None = None) -> Site:
    return Site(engines=8, blocks=blocks, cores=cores, costs=costs or EngineCosts())


def _limited(policy: RuntimePolicy) -> RuntimePolicy:
    return replace(policy, name=f"{policy.name}, {8 * _ROOM} at a time", at_once=_ROOM)


def _slower(factor: float) -> EngineCosts:
    return EngineCosts(*(factor * each for each in astuple(EngineCosts())))


CASES = (
    SiteCase("60 tasks, 8 engines of 80 GB, tools on 16 cores", 60, _site(_80_GB, 16)),
    SiteCase(
        "120 tasks, 8 engines of 80 GB, tools on 16 cores",
        120,
        _site(_80_GB, 16),
        (MIROFLOW, TOOLHUB, ADMISSION, PROXY_ADMISSION, _limited(MIROFLOW), _limited(TOOLHUB)),
        gain=3.0,
    ),
    SiteCase("60 tasks, 8 engines of 80 GB, tools on 4 cores", 60, _site(_80_GB, 4)),
    SiteCase("120 tasks, 8 engines of 141 GB, tools on 16 cores", 120, _site(_141_GB, 16)),
    SiteCase(
        "120 tasks, 8 engines of 80 GB with an A100's published costs, tools on 16 cores",
        120,
        _site(_80_GB, 16, A100_COSTS),
        (MIROFLOW, TOOLHUB, ADMISSION, PROXY_ADMISSION),
    ),
)
SENSITIVITY = (
    SiteCase("engines twice as fast", 60, _site(_80_GB, 16, _slower(0.5)), (MIROFLOW, TOOLHUB)),
    SiteCase("engines half as fast", 60, _site(_80_GB, 16, _slower(2.0)), (MIROFLOW, TOOLHUB)),
)
TRIED = SiteCase(
    CASES[0].name,
    CASES[0].tasks,
    CASES[0].site,
    (
        TOOLHUB,
        replace(TOOLHUB, name="in strides of 2", stride=2),
        replace(TOOLHUB, name="in strides of 10", stride=10),
        replace(TOOLHUB, name="cut at every turn, prefilled ahead", stride=0),
        replace(TOOLHUB, name="with pins of 30 s", pin_s=30.0),
        replace(TOOLHUB, name="with prefill-ahead of what was evicted", warms_evicted=True),
    ),
)
"""Other policies for the first case."""


@dataclass(frozen=True)
class ExtrapolationSettings:
    """What is extrapolated. scale: of the tasks; below 1 only for a first look."""

    cases: Sequence[SiteCase] = CASES
    sensitivity: Sequence[SiteCase] = SENSITIVITY
    tried: Sequence[SiteCase] = (TRIED,)
    scale: float = 1.0
    workers: int = 2


@dataclass(frozen=True)
class ExtrapolationResults:
    """`Played.summary()` by case and policy."""

    cases: dict[str, dict[str, Json]] = field(default_factory=dict)
    sensitivity: dict[str, dict[str, Json]] = field(default_factory=dict)
    tried: dict[str, dict[str, Json]] = field(default_factory=dict)


def extrapolate(wanted: ExtrapolationSettings, start_cpu_s: float) -> ExtrapolationResults:
    """start_cpu_s: CPU seconds of starting a tool server, as measured."""
    found = ExtrapolationResults()
    groups = ((found.cases, wanted.cases), (found.sensitivity, wanted.sensitivity), (found.tried, wanted.tried))
    every = [(group, case, policy) for group, cases in groups for case in cases for policy in case.policies]
    with ProcessPoolExecutor(wanted.workers) as pool:
        asked = [(case, policy, wanted.scale, start_cpu_s) for _, case, policy in every]
        for (group, case, policy), summary in zip(every, pool.map(_summary, *zip(*asked, strict=True)), strict=True):
            group.setdefault(case.name, {})[policy.name] = summary
    return found


def _summary(case: SiteCase, policy: RuntimePolicy, scale: float, start_cpu_s: float) -> Json:
    costs = replace(policy, start_cpu_s=(start_cpu_s, start_cpu_s))
    return play(make_tasks(case.tasks, scale=scale), costs, case.site).summary()
