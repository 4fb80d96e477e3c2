"""What `admission` found, as tables and targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks.admission.heat_map import HeatMapCell
from benchmarks.admission.programs import ALL_AT_ONCE, PolicyChoice, RunReport, Workload
from benchmarks.common.measure import median
from benchmarks.common.result import Column, Json, Outcome, Table, Target, ratio
from benchmarks.model.samples import Measured


@dataclass(frozen=True)
class RowResults:
    """capacity: tokens of the cache. best: the fixed number that ends soonest on the modelled engine."""

    capacity: int
    workload: Workload
    fits: bool
    best: PolicyChoice
    measured: Mapping[PolicyChoice, Sequence[RunReport]]
    modelled: Mapping[PolicyChoice, RunReport]

    def seconds(self, choice: PolicyChoice, key: str) -> float:
        """The median round's. key: makespan_s or mean_task_s."""
        return median([getattr(one, key) for one in self.measured[choice]])

    def error_percent(self, choice: PolicyChoice, key: str) -> float:
        """How much more the model says than was measured."""
        modelled: float = getattr(self.model_of(choice), key)
        return 100 * (modelled / self.seconds(choice, key) - 1)

    def model_of(self, choice: PolicyChoice) -> RunReport:
        """The model knows nothing of a proxy."""
        return self.modelled[replace(choice, by_proxy=False)]


@dataclass(frozen=True)
class AdmissionResults:
    """calibration: of the modelled engine, on the real one. rows: by their names."""

    calibration: Measured
    rows: Mapping[str, RowResults]
    heat_map: Sequence[HeatMapCell]


def outcome_of(found: AdmissionResults, about: str) -> Outcome:
    tables = [_measured_table(name, row) for name, row in found.rows.items()]
    tables += [_model_table(found), _sweep_table(found)]
    if found.heat_map:
        tables += [_heat_table(found, "all_s", "All at once"), _heat_table(found, "fixed_s", "The best fixed number")]
    return Outcome(tables, _targets(found), _notes(found, about), _raw(found))


# --- tables -----------------------------------------------------------------------------------------------------------


def _measured_table(name: str, row: RowResults) -> Table:
    rows: list[Json] = []
    for choice, rounds in row.measured.items():
        middle = {key: row.seconds(choice, key) for key in ("makespan_s", "mean_task_s")}
        rows.append(
            {
                "policy": choice.label,
                "makespan_s": middle["makespan_s"],
                "makespan": ratio(middle["makespan_s"], row.seconds(ALL_AT_ONCE, "makespan_s")),
                "task_s": middle["mean_task_s"],
                "task": ratio(middle["mean_task_s"], row.seconds(ALL_AT_ONCE, "mean_task_s")),
                "cached": median([one.cached_percent for one in rounds]),
                "computed": median([one.computed for one in rounds]),
                "pauses": _pauses(rounds),
                "count": len(rounds),
            }
        )
    columns = [
        Column("policy", "policy"),
        Column("makespan_s", "until all are done, s", 1),
        Column("makespan", "÷ all at once", 2),
        Column("task_s", "mean task, s", 1),
        Column("task", "÷ all at once", 2),
        Column("cached", "% of prompt cached"),
        Column("computed", "prompt tokens computed"),
        Column("pauses", "pauses"),
        Column("count", "rounds"),
    ]
    return Table(_title(name, row), columns, rows)


def _pauses(rounds: Sequence[RunReport]) -> float | None:
    counts = [one.pauses for one in rounds if one.pauses is not None]
    return median(counts) if counts else None


def _title(name: str, row: RowResults) -> str:
    load = row.workload
    agents = f"{load.agents} agents of {load.turns} turns, tools of {load.wait_s:g} s"
    return f"{name}: {agents}, a cache of {row.capacity:,} tokens"


def _model_table(found: AdmissionResults) -> Table:
    rows = [
        {
            "row": name,
            "policy": choice.label,
            "makespan_s": row.seconds(choice, "makespan_s"),
            "modelled_s": row.model_of(choice).makespan_s,
            "makespan_error": row.error_percent(choice, "makespan_s"),
            "task_s": row.seconds(choice, "mean_task_s"),
            "modelled_task_s": row.model_of(choice).mean_task_s,
            "task_error": row.error_percent(choice, "mean_task_s"),
            "computed": median([one.computed for one in row.measured[choice]]),
            "modelled_computed": row.model_of(choice).computed,
        }
        for name, row in found.rows.items()
        for choice in row.measured
    ]
    columns = [
        Column("row", "row"),
        Column("policy", "policy"),
        Column("makespan_s", "until all are done, measured s", 1),
        Column("modelled_s", "modelled s", 1),
        Column("makespan_error", "error, %"),
        Column("task_s", "mean task, measured s", 1),
        Column("modelled_task_s", "modelled s", 1),
        Column("task_error", "error, %"),
        Column("computed", "prompt tokens computed, measured"),
        Column("modelled_computed", "modelled"),
    ]
    return Table("The model beside the real engine, the same agents", columns, rows)


def _sweep_table(found: AdmissionResults) -> Table:
    names = [name for name, row in found.rows.items() if not row.fits] or list(found.rows)
    choices = next(iter(found.rows.values())).modelled
    rows = [
        {
            "policy": choice.label,
            **{f"{name} s": found.rows[name].modelled[choice].makespan_s for name in names},
            **{f"{name} task s": found.rows[name].modelled[choice].mean_task_s for name in names},
        }
        for choice in choices
    ]
    columns = [Column("policy", "policy")]
    for name in names:
        columns += [Column(f"{name} s", f"{name}: all, s", 1), Column(f"{name} task s", "mean task, s", 1)]
    return Table("Every fixed number of tasks, modelled", columns, rows)


def _heat_table(found: AdmissionResults, other: str, title: str) -> Table:
    """Rows are caches, columns are waits. A number below 1 is a loss of the ledger."""
    waits = list(dict.fromkeys(cell.wait_s for cell in found.heat_map))
    rows: list[Json] = []
    for tokens in dict.fromkeys(cell.tokens for cell in found.heat_map):
        cells = {cell.wait_s: cell for cell in found.heat_map if cell.tokens == tokens}
        gains = {f"{wait_s:g}": ratio(getattr(cell, other), cell.ledger_s) for wait_s, cell in cells.items()}
        rows.append({"cache": f"{tokens:,} tokens", **gains})
    columns = [Column("cache", "cache"), *(Column(f"{each:g}", f"tools of {each:g} s, times", 2) for each in waits)]
    return Table(f"{title} ÷ token ledger, time until all are done, modelled", columns, rows)


# --- verdict ----------------------------------------------------------------------------------------------------------


def _targets(found: AdmissionResults) -> list[Target]:
    targets: list[Target] = []
    for name, row in found.rows.items():
        fixed = [choice for choice in row.measured if choice.at_most is not None]
        for choice in (choice for choice in row.measured if choice.is_ledger):
            targets += _ledger_targets(name, row, choice, fixed)
    errors = [abs(row.error_percent(choice, "makespan_s")) for row in found.rows.values() for choice in row.measured]
    return [*targets, Target("model of the engine, largest error of the time until all are done", max(errors), 15, "%")]


def _ledger_targets(
    name: str, row: RowResults, choice: PolicyChoice, fixed: Sequence[PolicyChoice]
) -> Iterator[Target]:
    def over(other: PolicyChoice, key: str) -> float | None:
        return ratio(row.seconds(choice, key), row.seconds(other, key))

    claim = f"{name}, until all are done: {choice.label} ÷"
    makespan = over(ALL_AT_ONCE, "makespan_s")
    if row.fits:
        yield Target(f"{claim} all at once", makespan, 1.01, "×")
        return
    yield Target(f"{claim} all at once", makespan, 0.66, "×")
    task = over(ALL_AT_ONCE, "mean_task_s")
    yield Target(f"{name}, mean task: {choice.label} ÷ all at once", task, 0.55, "×")
    best = min(fixed, key=lambda each: row.seconds(each, "makespan_s"))
    yield Target(f"{claim} {best.label}", over(best, "makespan_s"), 1.0, "×")


def _notes(found: AdmissionResults, about: str) -> list[str]:
    load = next(iter(found.rows.values())).workload
    costs = ", ".join(f"{name} {value:.3g}" for name, value in asdict(found.calibration.calibration.costs).items())
    best = "; ".join(f"{name}: {row.best.label}" for name, row in found.rows.items() if not row.fits)
    return [
        f"{about}, prefix caching on. Agents begin together. Their prompts are the same for every policy: about "
        f"{load.shared} tokens that all share, {load.question} of their own, {load.result} for each tool result. "
        f"The model writes about {load.answer} tokens, prescribed by structured outputs. Tools are waits, the same for "
        "every policy, exponentially distributed. Each run begins with an empty cache. A task's time begins when all "
        "begin, so it includes what the task waited for its admission.",
        "All at once, a fixed number of tasks, token ledger: toolhub's client, as the agent loop uses it; with "
        "`llm.admission.enabled` it has the ledger. In the LLM proxy: the openai SDK in front of `toolhub serve` with "
        "the same setting; the proxy finds out which requests belong to one agent. The ledger has its defaults and "
        "reads the capacity of the cache from the engine's /metrics.",
        f"A fixed number of tasks: those in the tables, and the best of {_numbers(found)} on the modelled engine "
        f"({best}).",
        "Modelled: the same agents and policies on the engine of `benchmarks/model`, with costs fitted to this engine "
        f"({costs}; seconds) by requests of other sizes. Its error on conversations that the fit has not seen is "
        f"{found.calibration.held_out_error:.0%}.",
    ]


def _numbers(found: AdmissionResults) -> str:
    fixed = [choice.at_most for row in found.rows.values() for choice in row.modelled if choice.at_most is not None]
    return f"{min(fixed)} to {max(fixed)}"


def _raw(found: AdmissionResults) -> Json:
    return {
        "rows": {
            name: {
                "measured": {
                    choice.label: [one.to_json() for one in rounds] for choice, rounds in row.measured.items()
                },
                "modelled": {choice.label: one.to_json() for choice, one in row.modelled.items()},
            }
            for name, row in found.rows.items()
        },
        "costs": asdict(found.calibration.calibration.costs),
        "samples": [asdict(sample) for sample in found.calibration.samples],
        "held_out": [asdict(each) for each in found.calibration.held_out],
        "heat_map": [cell.to_json() for cell in found.heat_map],
    }
