"""How much a ledger gains on the modelled engine, by what the cache holds and by how long tools take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from benchmarks.admission.modelled import ModelledEngine, simulate
from benchmarks.admission.programs import ALL_AT_ONCE, LEDGER, PolicyChoice, Workload
from benchmarks.common.result import Json
from benchmarks.model.costs import EngineCosts


@dataclass(frozen=True)
class HeatMapSettings:
    """tokens: cache sizes. waits_s: a tool's mean seconds. sweep: numbers of tasks at a time that are tried."""

    tokens: Sequence[int] = (10_000, 15_000, 24_000, 60_000)
    waits_s: Sequence[float] = (1.0, 2.0, 3.0, 6.0)
    sweep: Sequence[int] = range(2, 17)
    workload: Workload = field(default_factory=lambda: Workload(1.0))


@dataclass(frozen=True)
class HeatMapCell:
    """Seconds until the last agent ended. best: tasks at a time, of the sweep."""

    tokens: int
    wait_s: float
    all_s: float
    fixed_s: float
    best: int
    ledger_s: float

    def to_json(self) -> Json:
        return dict(vars(self))


def play_heat_map(settings: HeatMapSettings, costs: EngineCosts, block: int, budget: int) -> list[HeatMapCell]:
    """block: tokens of one. budget: tokens of a step."""
    return [
        _cell(
            replace(settings.workload, wait_s=wait_s),
            ModelledEngine(costs, tokens // block, block, budget, settings.workload.shared),
            settings.sweep,
        )
        for tokens in settings.tokens
        for wait_s in settings.waits_s
    ]


def _cell(workload: Workload, site: ModelledEngine, sweep: Sequence[int]) -> HeatMapCell:
    traces = workload.traces()

    def seconds(choice: PolicyChoice) -> float:
        return simulate(traces, choice, site).makespan_s

    fixed = {tasks: seconds(PolicyChoice(tasks)) for tasks in sweep}
    best = min(fixed, key=fixed.__getitem__)
    return HeatMapCell(site.capacity, workload.wait_s, seconds(ALL_AT_ONCE), fixed[best], best, seconds(LEDGER))
