"""What `task` found, as tables and targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from benchmarks.common.measure import median
from benchmarks.common.result import Column, Json, Outcome, Table, Target, ratio
from benchmarks.model.samples import Measured
from benchmarks.task.modelled import ADMISSION, ExtrapolationResults, ExtrapolationSettings, Modelled, SiteCase
from benchmarks.task.replay import Replay, Round
from benchmarks.task.variants import DROP_IN, SPAWN, TOOLHUB

# Variants have the names of the policies that model them.
LABELS = {
    SPAWN: "MiroFlow's pattern",
    DROP_IN: "the same loop with toolhub's ToolManager",
    TOOLHUB: "toolhub's loop and hub",
}
_PARTS = [
    Column("queue_s", "LLM: queue, s", 1),
    Column("prefill_s", "LLM: prefill, s", 1),
    Column("decode_s", "LLM: decode, s", 1),
    Column("tools_s", "tools, s", 1),
    Column("start_s", "start-up, s", 1),
]
_KEYS = [column.key for column in _PARTS]


@dataclass(frozen=True)
class TaskResults:
    """start_cpu_s: CPU seconds for each tool server that MiroFlow's pattern starts, as measured."""

    measured: Measured
    rounds: Mapping[str, Sequence[Round]]
    modelled: Mapping[str, Modelled]
    start_cpu_s: float
    extrapolated: ExtrapolationResults


def outcome_of(found: TaskResults, replay: Replay, extrapolation: ExtrapolationSettings, about: str) -> Outcome:
    cases = [_case_table(case, found.extrapolated.cases[case.name]) for case in extrapolation.cases]
    tables = [_real_table(found, replay), _model_table(found), _calibration_table(found.measured), *cases]
    if extrapolation.sensitivity:
        tables.append(_sensitivity_table(found, extrapolation))
    tables += [_tried_table(name, played) for name, played in found.extrapolated.tried.items()]
    return Outcome(tables, _targets(found, extrapolation), _notes(found, replay, about), _raw(found))


# --- the real engine ------------------------------------------------------------------------------------------------


def _real_table(found: TaskResults, replay: Replay) -> Table:
    split = {variant: _mean_of([one.split for one in rounds]) for variant, rounds in found.rounds.items()}
    walls = {variant: [each.wall_s for one in rounds for each in one.times] for variant, rounds in found.rounds.items()}
    rows = [
        {
            "way": LABELS[variant],
            "task_s": split[variant]["task_s"],
            **{key: split[variant][key] for key in _KEYS},
            "gain": ratio(split[SPAWN]["task_s"], split[variant]["task_s"]),
            "spread": f"{min(walls[variant]):.1f}–{max(walls[variant]):.1f}",
            "ttft_ms": 1e3 * median([ttft for one in rounds for each in one.times for ttft in each.ttft_s]),
            "cached": 100 * _cached_share(rounds),
            "cpu_s": fmean(one.cpu_s / len(one.times) for one in rounds),
            "tasks": sum(len(one.times) for one in rounds),
        }
        for variant, rounds in found.rounds.items()
    ]
    columns = [
        Column("way", "way"),
        Column("task_s", "a task, s", 1),
        *_PARTS,
        Column("gain", "times faster", 2),
        Column("spread", "tasks, least–most s"),
        Column("ttft_ms", "TTFT after tools, p50 ms"),
        Column("cached", "% of prompt cached"),
        Column("cpu_s", "CPU s of tools and agent", 1),
        Column("tasks", "tasks"),
    ]
    title = f"Where the time goes: a real engine, {replay.tasks} tasks of {replay.turns} turns at once"
    return Table(title, columns, rows)


def _mean_of(splits: Sequence[Json]) -> dict[str, float]:
    return {key: fmean(split[key] for split in splits) for key in splits[0]}


def _cached_share(rounds: Sequence[Round]) -> float:
    turns = [turn for one in rounds for each in one.times for turn in each.turns]
    return sum(turn.cached for turn in turns) / sum(turn.prompt for turn in turns)


# --- the model ------------------------------------------------------------------------------------------------------


def _model_table(found: TaskResults) -> Table:
    rows = []
    for variant, again in found.modelled.items():
        splits = _mean_of([one.split for one in found.rounds[variant]])
        llm_s = splits["queue_s"] + splits["prefill_s"] + splits["decode_s"]
        rows.append(
            {
                "way": LABELS[variant],
                "task_s": splits["task_s"],
                "modelled_task_s": again.task_s,
                "task_error": 100 * (again.task_s / splits["task_s"] - 1),
                "llm_s": llm_s,
                "modelled_llm_s": again.llm_s,
                "llm_error": 100 * (again.llm_s / llm_s - 1),
            }
        )
    columns = [
        Column("way", "way"),
        Column("task_s", "a task, measured s", 1),
        Column("modelled_task_s", "modelled s", 1),
        Column("task_error", "error, %"),
        Column("llm_s", "LLM of it, measured s", 1),
        Column("modelled_llm_s", "modelled s", 1),
        Column("llm_error", "error, %"),
    ]
    return Table("The model beside the real engine, the same tasks", columns, rows)


def _calibration_table(measured: Measured) -> Table:
    fit = measured.calibration
    rows: list[Json] = [{"what": f"fit of {fit.samples} samples, mean distance", "error": 100 * fit.error}]
    rows += [
        {
            "what": f"not seen by the fit: {each.name}",
            "measured_ms": 1e3 * each.measured_s,
            "predicted_ms": 1e3 * each.predicted_s,
            "error": 100 * (each.predicted_s / each.measured_s - 1),
        }
        for each in measured.held_out
    ]
    columns = [
        Column("what", "what"),
        Column("measured_ms", "mean request, measured ms"),
        Column("predicted_ms", "predicted ms"),
        Column("error", "error, %", 1),
    ]
    return Table("Calibration of the model on this engine", columns, rows)


# --- extrapolations -------------------------------------------------------------------------------------------------


def _label(policy: str) -> str:
    name, _, more = policy.partition(", ")
    return f"{LABELS[name]}, {more}" if more else LABELS[name]


def _case_table(case: SiteCase, played: Mapping[str, Json]) -> Table:
    (base, *_) = played.values()
    rows = [
        {
            "way": _label(policy),
            "task_s": summary["task_s"],
            **{key: summary[key] for key in _KEYS},
            "gain": ratio(base["task_s"], summary["task_s"]),
            "wall_h": summary["wall_s"] / 3600,
            "sweep_gain": ratio(base["wall_s"], summary["wall_s"]),
            "ttft_p50_s": summary["ttft_p50_s"],
            "ttft_p95_s": summary["ttft_p95_s"],
            "cached": 100 * summary["cached_share"],
        }
        for policy, summary in played.items()
    ]
    columns = [
        Column("way", "way"),
        Column("task_s", "a task, s"),
        *(Column(part.key, part.label) for part in _PARTS),
        Column("gain", "times faster", 2),
        Column("wall_h", "all tasks, hours", 2),
        Column("sweep_gain", "all tasks, times faster", 2),
        Column("ttft_p50_s", "TTFT after tools, p50 s", 2),
        Column("ttft_p95_s", "p95 s", 2),
        Column("cached", "% of prompt cached"),
    ]
    return Table(f"Where the time goes, modelled: {case.name}", columns, rows)


def _sensitivity_table(found: TaskResults, extrapolation: ExtrapolationSettings) -> Table:
    rows = []
    for case in extrapolation.sensitivity:
        played = found.extrapolated.sensitivity[case.name]
        base, ours = (played[variant]["task_s"] for variant in (SPAWN, TOOLHUB))
        rows.append({"case": case.name, "base_s": base, "ours_s": ours, "gain": ratio(base, ours)})
    columns = [
        Column("case", f"{extrapolation.cases[0].name}, but"),
        Column("base_s", f"{LABELS[SPAWN]}, a task, s"),
        Column("ours_s", f"{LABELS[TOOLHUB]}, s"),
        Column("gain", "times faster", 2),
    ]
    return Table("If what is assumed were otherwise", columns, rows)


def _tried_table(case: str, played: Mapping[str, Json]) -> Table:
    base = played[TOOLHUB]
    rows = [
        {
            "way": LABELS[TOOLHUB] if policy == TOOLHUB else f"the same {policy}",
            "task_s": summary["task_s"],
            "llm_s": summary["llm_s"],
            "gain": ratio(base["task_s"], summary["task_s"]),
            "ttft_p95_s": summary["ttft_p95_s"],
            "cached": 100 * summary["cached_share"],
        }
        for policy, summary in played.items()
    ]
    columns = [
        Column("way", "way"),
        Column("task_s", "a task, s"),
        Column("llm_s", "LLM of it, s"),
        Column("gain", "times faster", 2),
        Column("ttft_p95_s", "TTFT after tools, p95 s", 2),
        Column("cached", "% of prompt cached"),
    ]
    return Table(f"Other ways, modelled: {case}", columns, rows)


# --- verdict --------------------------------------------------------------------------------------------------------


def _targets(found: TaskResults, extrapolation: ExtrapolationSettings) -> list[Target]:
    real = {variant: fmean(one.split["task_s"] for one in rounds) for variant, rounds in found.rounds.items()}
    claim = "MiroFlow's pattern ÷ toolhub, time of a task"
    targets = [Target(f"{claim}, real engine", ratio(real[SPAWN], real.get(TOOLHUB)), 2, "×", at_most=False)]
    for case in extrapolation.cases:
        played = found.extrapolated.cases[case.name]
        gain = ratio(played[SPAWN]["task_s"], played[TOOLHUB]["task_s"])
        targets.append(Target(f"{claim}, modelled: {case.name}", gain, 2, "×", at_most=False))
        admitted = ratio(played[SPAWN]["task_s"], played[ADMISSION.name]["task_s"])
        targets.append(
            Target(f"{claim} with admission, modelled: {case.name}", admitted, case.gain, "×", at_most=False)
        )
    errors = found.measured.held_out_error
    return [*targets, Target("model of the engine, error on requests it has not seen", 100 * errors, 20, "%")]


def _notes(found: TaskResults, replay: Replay, about: str) -> list[str]:
    costs = found.measured.calibration.costs
    told = ", ".join(f"{name} {value:.3g}" for name, value in asdict(costs).items())
    return [
        f"{about}; what it says is prescribed by structured outputs. The tasks are made up "
        "(`benchmarks/model/traces.py` says which numbers are measured, read or assumed): turns and tokens are scaled "
        f"down, the tools' seconds are not. {replay.rounds} rounds, all ways in turns on the same tasks, each with an "
        "empty cache; a task's time begins with the first thing that its way starts. The tool servers are "
        "the SDK's over stdio, the same in all ways, and import nothing but the SDK: real ones import more.",
        "Start-up is what a task waits for beside the model and the tools themselves: starting servers, shaking hands, "
        "the hub, the loop. Tools that run while the model writes count as the model's time.",
        "Engine and tool servers share this machine's cores, so that starting servers also slows the engine down; with "
        "accelerators it does not. The model of the engine does not know that.",
        "Modelled: a discrete-event model of an engine (`benchmarks/model/engine.py`: blocks of a KV cache, LRU, "
        f"chunked prefill, batching). Its form is calibrated on the engine here ({told}; seconds), and the sites' "
        "costs are those that `EngineCosts` assumes for an accelerator, but for the case with an A100's published ones "
        "(`benchmarks/model/costs.py` has the sources). Tasks have 300 turns and 346 calls on average. "
        f"A tool server takes {found.start_cpu_s:.2f} s of CPU to start, as measured here for the SDK and the client.",
        *(_limits(name, played) for name, played in list(found.extrapolated.cases.items())[:1]),
        "Where the cache holds less than all conversations need, prompts that only grow lose to prompts that are cut "
        "at every turn, whoever keeps the sessions. Fewer tasks at once (`toolhub run --concurrency`) repair that, for "
        "either, and so does admission by the tokens of the cache (`llm.admission`), without a number to choose. There "
        "the queue is also the wait for admission. `toolhub bench admission` measures it on a real engine.",
    ]


def _limits(case: str, played: Mapping[str, Json]) -> str:
    """Describe the part that no runtime can change."""
    base, ours = (played[variant] for variant in (SPAWN, TOOLHUB))
    removable = [(each["queue_s"] + each["prefill_s"] + each["start_s"]) / each["task_s"] for each in (base, ours)]
    return (
        f"{case}: of a task in MiroFlow's pattern {base['tools_s'] / base['task_s']:.0%} are the tools' own seconds, "
        f"{base['decode_s'] / base['task_s']:.0%} decoding. Start-up, queue and prefill, which is what a runtime can "
        f"take away, are {removable[0]:.0%} of it, and {removable[1]:.0%} of toolhub's."
    )


def _raw(found: TaskResults) -> Json:
    return {
        "rounds": {LABELS[variant]: [one.to_json() for one in rounds] for variant, rounds in found.rounds.items()},
        "task_s_by_round": {
            LABELS[variant]: [one.split["task_s"] for one in rounds] for variant, rounds in found.rounds.items()
        },
        "start_cpu_s": found.start_cpu_s,
        "samples": [asdict(sample) for sample in found.measured.samples],
        "costs": asdict(found.measured.calibration.costs),
        "extrapolated": asdict(found.extrapolated),
    }
