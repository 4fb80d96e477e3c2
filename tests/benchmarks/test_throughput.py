"""The benchmark of calls per second answers end to end, counts no wrong answer, and tells how late loops wake."""

from __future__ import annotations

import json
import math
from typing import Any

import anyio
import pytest
from mcp import Client

from benchmarks.common import loop_lag
from benchmarks.common.callers import asking, check
from benchmarks.common.result import Outcome
from benchmarks.common.server_commands import builtin_clock, lean_echo, own_clock
from benchmarks.throughput import benchmark as throughput

TINY = throughput.ThroughputScale(rounds=1, calls=2, in_flight=(1, 2))


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return throughput.run(TINY)


@pytest.mark.slow
def test_every_variant_has_a_row_in_both_tables(outcome: Outcome) -> None:
    lean, clock = ([row["way"] for row in table.rows] for table in outcome.tables)
    left_out = [note for note in outcome.notes if note.startswith("Left out")]
    assert all("fastmcp" in note for note in left_out), left_out
    variants = [variant.label for variant in throughput.VARIANTS if not (left_out and variant.opener == "fastmcp")]
    builtin = [f"{variant}, builtin (no process)" for variant in variants if variant.startswith("toolhub")]
    assert (lean, clock) == (variants, variants + builtin)
    assert len(builtin) == 2


@pytest.mark.slow
def test_every_cell_that_can_be_measured_is(outcome: Outcome) -> None:
    rows = [row for table in outcome.tables for row in table.rows]
    assert not any(isinstance(value, float) and math.isnan(value) for row in rows for value in row.values())
    assert all(row["at_1_per_s"] > 0 and row["at_2_per_s"] > 0 and row["at_2_vs_sdk"] > 0 for row in rows)
    assert [row["hub_cpu_us"] is not None for row in rows] == ["unix socket" in row["way"] for row in rows]


@pytest.mark.slow
def test_every_target_about_speed_and_cpu_has_its_number(outcome: Outcome) -> None:
    measured = {target.claim: target.value for target in outcome.targets if "lag" not in target.claim}
    assert len(measured) == 4
    assert None not in measured.values()


def test_each_echo_has_a_text_of_its_own_and_only_its_own_answer_counts() -> None:
    ask = asking(lean_echo().to_json())
    (first, expected), (second, other) = ask(), ask()
    assert (first, second) == ({"text": expected}, {"text": other})
    check(False, first["text"], expected)
    with pytest.raises(RuntimeError, match="a wrong one must not count"):
        check(False, second["text"], expected)


def test_a_clock_has_to_tell_the_zone() -> None:
    assert own_clock().to_json() | {"builtin": "", "name": ""} == builtin_clock().to_json() | {
        "builtin": "",
        "name": "",
    }
    _, expected = asking(own_clock().to_json())()
    with pytest.raises(RuntimeError, match="the answer has no"):
        check(False, '{"timezone": "Europe/Berlin"}', expected)


@pytest.mark.anyio
async def test_ticks_tells_each_lag_once() -> None:
    async def taken(client: Client) -> list[float]:
        result: Any = await client.call_tool("take", {})
        lags: list[float] = json.loads(result.content[0].text)
        return lags

    with anyio.fail_after(30):
        async with Client(loop_lag.create_server()) as client:
            while not (lags := await taken(client)):
                pass
            assert all(lag >= 0 for lag in lags)
            assert len(await taken(client)) < 50
