"""Prefetching is switched off where it does not help, stays where it does, and is tried again rarely."""

from __future__ import annotations

from itertools import count

import pytest
from toolhub_agent.kv_hints.policy import HOLDOUT_EVERY, MAX_REPROBE_WAITS, MIN_SAMPLES, REPROBE_WAITS, PrefetchGate

pytestmark = pytest.mark.quick

PROMPT = 10_000


def wait(gate: PrefetchGate, *, evicts: bool, reports: bool = True) -> bool:
    """One tool wait and the turn behind it; was it prefetched?"""
    prefetched = gate.allows_prefetch()
    found = PROMPT * 9 // 10 if prefetched or not evicts else 0
    seconds = 0.1 + (PROMPT - found) / 1000
    gate.resumed(prefetched=prefetched, prompt_tokens=PROMPT, cached_tokens=found if reports else None, ttft=seconds)
    return prefetched


def waits(gate: PrefetchGate, number: int, **world) -> list[bool]:
    return [wait(gate, **world) for _ in range(number)]


@pytest.mark.parametrize("reports", [True, False])
def test_where_the_cache_evicts_it_stays_on_with_a_small_share_left_out_for_comparison(reports):
    gate = PrefetchGate()
    waits(gate, 2 * MIN_SAMPLES, evicts=True, reports=reports)
    later = waits(gate, 10 * HOLDOUT_EVERY, evicts=True, reports=reports)
    assert not gate.is_off
    assert later.count(False) == 10


@pytest.mark.parametrize("reports", [True, False])
def test_where_nothing_is_evicted_it_goes_off_after_few_waits(reports):
    gate = PrefetchGate()
    prefetched = waits(gate, 2 * MIN_SAMPLES, evicts=False, reports=reports)
    assert prefetched.count(True) == MIN_SAMPLES
    assert gate.is_off
    assert not any(waits(gate, 20, evicts=False, reports=reports))


def test_more_in_the_cache_but_slower_turns_are_no_gain():
    gate = PrefetchGate()
    for _ in range(2 * MIN_SAMPLES):
        prefetched = gate.allows_prefetch()
        gate.resumed(
            prefetched=prefetched,
            prompt_tokens=PROMPT,
            cached_tokens=9000 if prefetched else 0,
            ttft=2.0 if prefetched else 1.0,
        )
    assert gate.is_off


def test_without_a_gain_it_is_tried_again_ever_more_rarely():
    gate = PrefetchGate()
    tried = [at for at in range(6 * MAX_REPROBE_WAITS) if wait(gate, evicts=False)]
    starts = [at for before, at in zip([-100, *tried], tried, strict=False) if at - before > REPROBE_WAITS / 2]
    pauses = [later - sooner for sooner, later in zip(starts, starts[1:], strict=False)]
    assert pauses[0] >= REPROBE_WAITS
    assert pauses == sorted(pauses)
    assert pauses[-1] >= MAX_REPROBE_WAITS


def test_when_the_cache_begins_to_evict_it_comes_back_soon():
    gate = PrefetchGate()
    waits(gate, 2 * MIN_SAMPLES, evicts=False)
    assert gate.is_off
    until = next(number for number in count(1) if wait(gate, evicts=True))
    assert until <= MIN_SAMPLES + 1
    waits(gate, 2 * MIN_SAMPLES, evicts=True)
    assert not gate.is_off


def test_always_on_leaves_nobody_out_and_never_goes_off():
    gate = PrefetchGate(always=True)
    assert all(waits(gate, 10 * MIN_SAMPLES, evicts=False))
    assert not gate.is_off


def test_the_report_shows_what_the_verdict_rests_on():
    gate = PrefetchGate()
    waits(gate, 2 * MIN_SAMPLES, evicts=True)
    report = gate.report()
    assert (report.prefetched, report.holdout, report.is_off) == (MIN_SAMPLES, MIN_SAMPLES, False)
    assert report.prefetched_share == pytest.approx(0.9)
    assert report.holdout_share == 0
    assert report.ttft_ratio is not None and report.ttft_ratio < 0.2
