"""The tasks that were played on the real engine, played again on the modelled one: how far off is the model?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.common.measure import median
from benchmarks.common.result import Json
from benchmarks.model.costs import EngineCosts
from benchmarks.model.play import DROP_IN, MIROFLOW, TOOLHUB, Policy, Site, play
from benchmarks.model.traces import FRAME_TOKENS, TaskTrace, Turn
from benchmarks.task.replay import Round
from benchmarks.task.times import TaskTimes

POLICIES: Mapping[str, Policy] = {policy.name: policy for policy in (MIROFLOW, DROP_IN, TOOLHUB)}


@dataclass(frozen=True)
class Modelled:
    """Seconds per task, means over all rounds."""

    task_s: float
    llm_s: float


def modelled(variant: str, rounds: Sequence[Round], site: Site, start_cpu_s: float) -> Modelled:
    """start_cpu_s: CPU seconds of starting a tool server."""
    policy = replace(POLICIES[variant], start_cpu_s=(start_cpu_s, start_cpu_s))
    found: list[Json] = [
        play([_as_played(*each) for each in zip(one.traces, one.times, strict=True)], policy, site).summary()
        for one in rounds
    ]
    return Modelled(fmean(each["task_s"] for each in found), fmean(each["llm_s"] for each in found))


def start_cpu_s(spawning: Sequence[Round]) -> float:
    """CPU seconds for each server that MiroFlow's pattern starts, its client's part included; the median round's."""
    return median([one.cpu_s / one.starts for one in spawning])


def site_of(costs: EngineCosts, blocks: int, budget: int, cores: int) -> Site:
    return Site(engines=1, blocks=blocks, budget=budget, cores=cores, costs=costs)


def _as_played(trace: TaskTrace, times: TaskTimes) -> TaskTrace:
    """With the tokens that the engine counted where it tells them: of answers, and of the first prompt."""
    turns: list[Turn] = []
    new_tokens = times.turns[0].prompt
    for turn, played in zip(trace.turns, times.turns, strict=True):
        turns.append(Turn(new_tokens, played.written, turn.calls))
        new_tokens = sum(call.result_tokens for call in turn.calls) + FRAME_TOKENS
    return TaskTrace(trace.seed, tuple(turns))
