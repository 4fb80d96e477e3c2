"""The tables, targets and notes of the benchmark of KV hints."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.common.measure import median
from benchmarks.common.result import Column, Json, Outcome, Table, Target, ratio
from benchmarks.kv.history import APPEND, EXACT, STRIDE, computed_of
from benchmarks.kv.mix import Throughput
from benchmarks.kv.results import AHEAD, LLM_PROXY, NOTHING, PIN, REFERENCE, KvEngines, KvResults, KvScale
from benchmarks.kv.waits import WaitStats

VARIANTS = {
    REFERENCE: "nothing evicted, no hints (reference)",
    NOTHING: "evicted, no hints",
    AHEAD: "evicted, prefill-ahead by the agent",
    LLM_PROXY: "evicted, prefill-ahead by the LLM proxy",
    PIN: "fillers come, pinned",
}
POLICIES = {
    EXACT.name: "keep 5, exact (MiroFlow)",
    STRIDE.name: "keep 5, stride 5",
    APPEND.name: "append only",
}


def outcome_of(found: KvResults, scale: KvScale, engines: KvEngines) -> Outcome:
    return Outcome(
        tables=[_wait_table(found, scale), _calm_table(found), _mix_table(found), _keep_table(found)],
        targets=_targets(found, scale),
        notes=_notes(found, scale, engines),
        raw=_raw(found),
    )


# --- tables -------------------------------------------------------------------------------------------------------


def _wait_table(found: KvResults, scale: KvScale) -> Table:
    rows = [
        _wait_row(found, "waits", variant)
        for variant in (REFERENCE, NOTHING, AHEAD, LLM_PROXY)
        if variant in found.waits.trials
    ]
    if found.pinned is not None:
        rows += [_wait_row(found, "pinned", variant) for variant in (REFERENCE, PIN)]
    columns = [
        Column("way", "the wait"),
        Column("ttft_ms", "TTFT after it, ms"),
        Column("to_reference", "÷ reference", 2),
        Column("prompt", "prompt tokens"),
        Column("cached", "of these cached"),
        Column("cold_ms", "TTFT of the turn before, ms"),
        Column("count", "waits"),
    ]
    return Table(f"A tool of {scale.sizes.tool_s:g} s while {scale.sizes.fillers} other prompts come", columns, rows)


def _wait_row(found: KvResults, part: str, variant: str) -> Json:
    ttft, reference = found.median(part, variant, "ttft_s"), found.median(part, REFERENCE, "ttft_s")
    cold = found.median(part, variant, "cold_s")
    return {
        "way": VARIANTS[variant] + (", on the engine with PinScheduler" if part == "pinned" else ""),
        "ttft_ms": _ms(ttft),
        "to_reference": ratio(ttft, reference),
        "prompt": found.median(part, variant, "prompt"),
        "cached": found.median(part, variant, "cached"),
        "cold_ms": _ms(cold),
        "count": len(getattr(found, part).trials[variant]),
    }


def _calm_table(found: KvResults) -> Table:
    names = {"off": "no hints", "auto": "hints as they are by default (`auto`)"}
    did = found.calm.statistics.get("auto")
    rows: list[Json] = [
        {
            "way": names[variant],
            "ttft_ms": _ms(found.median("calm", variant, "ttft_s")),
            "cached": found.median("calm", variant, "cached"),
            "warms": did.prefetches_sent if variant == "auto" and did else 0,
            "off_after": _off_after(found.calm, variant),
            "count": len(trials),
        }
        for variant, trials in found.calm.trials.items()
    ]
    columns = [
        Column("way", "way"),
        Column("ttft_ms", "TTFT after the wait, ms", 1),
        Column("cached", "cached tokens"),
        Column("warms", "prefill-aheads"),
        Column("off_after", "waits until they switched themselves off"),
        Column("count", "waits"),
    ]
    return Table("Nothing is evicted", columns, rows)


def _off_after(calm: WaitStats, variant: str) -> int | None:
    """The first wait after which the hints were off; None if they stayed on."""
    states = [each.get("is_off", False) for each in calm.trials.get(variant, [])]
    return states.index(True) + 1 if True in states else None


def _mix_table(found: KvResults) -> Table:
    rows = [
        {
            "way": {"off": "no hints", "on": "hints as they are by default (`auto`)"}[variant],
            **{key: median([each[key] for each in rounds]) for key in ("wall_s", "tokens_per_s", "prompt", "cached")},
            "warms": _sent(found.mix) if variant == "on" else 0,
            "count": len(rounds),
        }
        for variant, rounds in found.mix.rounds.items()
    ]
    columns = [
        Column("way", "way"),
        Column("wall_s", "wall s", 2),
        Column("tokens_per_s", "tokens/s"),
        Column("prompt", "prompt tokens"),
        Column("cached", "of these cached"),
        Column("warms", "prefill-aheads in all"),
        Column("count", "rounds"),
    ]
    return Table("Many tasks at once, their prompts more than the cache holds", columns, rows)


def _sent(mix: Throughput) -> int:
    return mix.statistics.prefetches_sent if mix.statistics is not None else 0


def _keep_table(found: KvResults) -> Table:
    base = _keep(found, EXACT.name, "computed")
    rows = [
        {
            "policy": POLICIES[name],
            "turns": _keep(found, name, "turns"),
            "sent": _keep(found, name, "sent"),
            "computed": (computed := _keep(found, name, "computed")),
            "percent": _percent(computed, base) if _whole(found, name) else None,
            "total_s": _keep(found, name, "total_s"),
            "turn_ms": _ms(_keep(found, name, "turn_s")),
            "longest": _keep(found, name, "longest"),
            "count": len(found.keep[name]),
        }
        for name in POLICIES
    ]
    columns = [
        Column("policy", "policy"),
        Column("turns", "turns"),
        Column("sent", "prompt tokens sent"),
        Column("computed", "computed by the engine"),
        Column("percent", "% of exact"),
        Column("total_s", "all turns, s", 2),
        Column("turn_ms", "median turn, ms"),
        Column("longest", "longest prompt"),
        Column("count", "rounds"),
    ]
    return Table("A long conversation, old tool results left out", columns, rows)


def _keep(found: KvResults, policy: str, key: str) -> float:
    told = found.keep[policy]
    return median([computed_of(each) if key == "computed" else each[key] for each in told])


def _whole(found: KvResults, policy: str) -> bool:
    """Whether it played all turns. If the context was full before, its sums are of fewer turns."""
    return _keep(found, policy, "turns") == _keep(found, EXACT.name, "turns")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _percent(value: float | None, base: float | None) -> float | None:
    share = ratio(value, base)
    return None if share is None else share * 100


# --- verdict ------------------------------------------------------------------------------------------------------


def _targets(found: KvResults, scale: KvScale) -> list[Target]:
    def ttft(part: str, variant: str) -> float | None:
        return found.median(part, variant, "ttft_s")

    def claims(name: str, variant: str, part: str = "waits") -> list[Target]:
        value, base = ttft(part, variant), ttft(part, REFERENCE)
        return [
            Target(f"{name}: TTFT ÷ un-evicted", ratio(value, base), 1.25, "×"),
            Target(f"{name}: no hint ÷ TTFT", ratio(ttft("waits", NOTHING), value), 5, "×", at_most=False),
        ]

    pinned = found.pinned
    share = ratio(found.median("pinned", PIN, "cached"), found.median("pinned", REFERENCE, "cached"))
    calm = ratio(ttft("calm", "auto"), ttft("calm", "off"))
    wall = {variant: median([each["tokens_per_s"] for each in rounds]) for variant, rounds in found.mix.rounds.items()}
    sums = {name: _keep(found, name, "computed") for name in POLICIES}
    times = {name: _keep(found, name, "total_s") for name in POLICIES}
    return [
        *claims("prefill-ahead", AHEAD),
        *claims("prefill-ahead by the LLM proxy", LLM_PROXY),
        *claims("pin", PIN, "pinned"),
        Target("pin: cached tokens ÷ un-evicted", share if pinned else None, 0.95, "×", at_most=False),
        Target("nothing evicted: TTFT with hints ÷ without", calm, 1.05, "×"),
        Target("nothing evicted: endpoints on which hints switched themselves off", _off(found), 1, at_most=False),
        Target(f"{scale.mix.tasks} tasks: tokens/s with hints ÷ without", wall["on"] / wall["off"], 0.97, "×", False),
        Target(f"{scale.talk.turns} turns: prefill saved by strides", _saved(sums), 60, "%", at_most=False),
        Target(f"{scale.talk.turns} turns: time of strides ÷ exact", _by(times), 0.5, "×"),
    ]


def _by(of: Mapping[str, float]) -> float | None:
    return ratio(of[STRIDE.name], of[EXACT.name])


def _saved(of: Mapping[str, float]) -> float | None:
    left = _by(of)
    return None if left is None else 100 * (1 - left)


def _off(found: KvResults) -> int:
    did = found.calm.statistics.get("auto")
    return len(did.disabled) if did else 0


def _notes(found: KvResults, scale: KvScale, engines: KvEngines) -> list[str]:
    sizes = scale.sizes
    notes = [
        f"{engines.about}, prefix caching on; the loop, its "
        "client and its hints are toolhub's own. What the model says is prescribed by structured outputs, as random "
        "weights call no tools. TTFT is the client's, from sending the request to the first piece of text.",
        f"A wait is that of a task of its own: a prompt of some {sizes.prompt} tokens beside the tools' description, a "
        f"call of {sizes.tool_s:g} s, a result of {sizes.result} tokens. From the tool's start on, {sizes.fillers} "
        f"prompts of {sizes.filler} tokens come from other users, one after another; the cache holds "
        f"{engines.cache_tokens:,} tokens. The hints have seen the tool's durations before and choose the moment "
        "themselves (`mode: on`, so that no wait is left out for comparison). Variants take turns.",
    ]
    if found.pinned is not None:
        notes.append(
            f"Pinned: an engine of its own with `--scheduler-cls toolhub_agent.vllm_plugin.PinScheduler`, its "
            f"reference measured there; the turn asks for `pin_ttl_s` {sizes.pin_ttl_s:g} itself, pins may take 70 % "
            "of the cache, and nothing is prefilled ahead."
        )
    if found.proxy_missing is not None:
        notes.append(f"Left out: the LLM proxy; {found.proxy_missing}.")
    else:
        notes.append(
            "Through the LLM proxy: `toolhub serve` in front of the same engine, its tool a builtin of the hub; "
            "the agent's own hints are off. The reference does not go through it."
        )
    statistics = found.mix.statistics
    if statistics is not None:
        skipped = ", ".join(f"{count} {reason}" for reason, count in sorted(statistics.prefetches_skipped.items()))
        notes.append(f"The tasks of the mix: waits without a prefill-ahead: {skipped or 'none'}.")
    if not _whole(found, APPEND.name):
        turns = _keep(found, APPEND.name, "turns")
        notes.append(f"Append only filled the context of {scale.talk.longest:,} tokens after {turns:.0f} turns.")
    notes.append(
        "The long conversation: a turn is one request for one token, so it is prefill "
        "alone. Computed is the engine's own count, `vllm:request_prefill_kv_computed_tokens`."
    )
    return notes


def _raw(found: KvResults) -> Json:
    return {
        "waits": found.waits.to_json(),
        "calm": found.calm.to_json(),
        "pinned": found.pinned.to_json() if found.pinned else None,
        "mix": found.mix.to_json(),
        "keep": found.keep,
    }
