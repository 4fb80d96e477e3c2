"""Every question answers end to end, with as little work as it can. What it measures is no test's business."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import runner
from benchmarks.common.result import Benchmark, Outcome
from benchmarks.common.server_commands import fixture_echo, lean_echo
from benchmarks.common.subprocess_worker import WorkerFailed
from benchmarks.decode import turns
from benchmarks.gateway import benchmark as gateway
from benchmarks.idle import benchmark as idle
from benchmarks.init import benchmark as init
from benchmarks.mirothinker import benchmark as mirothinker
from benchmarks.overhead import benchmark as overhead
from benchmarks.overlap import benchmark as overlap
from benchmarks.proxy import benchmark as proxy
from benchmarks.questions import BENCHMARKS
from benchmarks.recover import benchmark as recover
from benchmarks.replay import benchmark as replay
from benchmarks.sandbox import benchmark as sandbox
from benchmarks.sandbox import startup
from benchmarks.servers import benchmark as servers
from benchmarks.throughput import benchmark as throughput
from testbed.third_party import SetupError
from tests.benchmarks.stand_in_engine import TINY_DECODE, TINY_KV, TINY_LOOP
from tests.benchmarks.tiny_admission import TINY_ADMISSION
from tests.benchmarks.tiny_loads import TINY_OVERLOAD, TINY_SWEEP
from tests.benchmarks.tiny_starts import TINY_DENSITY, TINY_STORM
from tests.benchmarks.tiny_tasks import TINY_TASK

# An event loop more is a start more and no code more; that each of the others answers is test_contestants' business.
VARIANTS = tuple(
    variant
    for variant in overhead.VARIANTS
    if not variant.uvloop and variant.opener not in ("http", "fastmcp_proxy", "langchain")
)
TINY: dict[str, Any] = {
    "overhead": overhead.OverheadScale(
        rounds=1, calls=2, spawns=1, in_flight=(2,), variants=VARIANTS, servers=(lean_echo(),)
    ),
    "throughput": throughput.ThroughputScale(rounds=1, calls=2, in_flight=(1, 2)),  # judged in test_throughput
    "gateway": gateway.GatewayScale(rounds=1, calls=2, starts=1),
    "proxy": proxy.ProxyScale((proxy.PromptSize(4, 1.5),), conversations=2, turns=1),
    "init": init.InitScale(tasks=(2,), in_turn_up_to=2, deadline_s=20, servers=(fixture_echo(),)),
    "recover": recover.RecoverScale(rounds=2, sdk_rounds=0, callers=4),
    "idle": idle.IdleScale(sessions=(0, 2), watch_s=0.1),
    "sandbox": sandbox.SandboxScale(
        startup.StartupRounds(number=1, starts=1, calls=2, commands=1),
        live=2,
        kernels=1,
        there=2,
        asked=3,
        warm_up_s=0.1,
        pauses_s=(0.001,),
        data=False,  # loading pandas is a second more and no code more
    ),
    "servers": servers.ServersScale(
        searches=3,
        search_rounds=1,
        tasks=2,
        ready_rounds=1,
        spawned=1,
        browsing=1,
        browser_rounds=1,
        browser_settle_s=0.0,
    ),
    # Judged in test_storm_density and test_overload_sweep.
    "storm": TINY_STORM,
    "density": TINY_DENSITY,
    "overload": TINY_OVERLOAD,
    "sweep": TINY_SWEEP,
    "soak": None,  # runs in test_soak
    "kv": TINY_KV,
    "loop": TINY_LOOP,
    "overlap": overlap.OverlapScale(scale=0.002, tasks=1, searches=2, rounds=1, calls=2, busy_s=0.1),
    "replay": replay.ReplayScale(rounds=1, calls=4, sizes=(10,), tasks=1, searches=2, scale=0.002),
    "mirothinker": mirothinker.MiroThinkerScale(turns=2, rounds=1),
    "task": TINY_TASK,  # judged in test_task
    "admission": TINY_ADMISSION,  # judged in test_admission_benchmark
    "decode": TINY_DECODE,
}


def tiny(name: str) -> Outcome:
    question = BENCHMARKS[name]
    outcome: Outcome = question.run(TINY[name])
    for row in (row for table in outcome.tables for row in table.rows):
        assert not any(isinstance(value, float) and math.isnan(value) for value in row.values()), row
    return outcome


def test_replay_measures_calls_and_attempts() -> None:
    calls, attempts = tiny("replay").tables
    assert [row["way"] for row in calls.rows] == ["no cassette", "recorded", "replayed"]
    assert [row["hits"] for row in attempts.rows][:4] == [0, 0, 0, 100]


def test_every_question_has_a_tiny_run() -> None:
    assert set(TINY) == set(BENCHMARKS)


@pytest.mark.slow
def test_overhead_measures_every_variant_that_is_installed_and_names_the_others() -> None:
    outcome = tiny("overhead")
    (table,) = outcome.tables
    missing = [variant for variant in VARIANTS if variant.environment and variant.environment.python() is None]
    assert [row["way"] for row in table.rows] == [variant.label for variant in VARIANTS if variant not in missing]
    left_out = [note for note in outcome.notes if note.startswith("Left out")]
    assert len(left_out) == len(missing)
    for variant, note in zip(missing, left_out, strict=True):
        assert variant.environment and variant.label in note and variant.environment.command in note
    through_hubs = {row["way"] for row in table.rows if row["hub_cpu_us"] is not None}
    assert through_hubs == {variant.label for variant in VARIANTS if variant.has_hub and variant not in missing}
    assert all(target.value is not None for target in outcome.targets)


@pytest.mark.slow
def test_gateway_measures_both_generations_over_both_transports_and_a_start() -> None:
    outcome = tiny("gateway")
    calls, starts = outcome.tables
    measured = [row["way"] for row in calls.rows if "fastmcp" not in row["way"]]
    upstreams = {"SDK, no gateway": ["HTTP"], "toolhub /mcp": ["HTTP", "stdio"]}
    expected = {
        f"{way}, server over {upstream}, {revision}"
        for way, transports in upstreams.items()
        for upstream in transports
        for revision in ("2025-11-25", "2026-07-28")
    }
    assert (len(measured), set(measured)) == (6, expected)
    assert [row["way"] for row in starts.rows] == ["the server itself", "toolhub stdio"]
    assert all(target.value is not None for target in outcome.targets if "fastmcp" not in target.claim)


@pytest.mark.slow
def test_proxy_asks_each_turn_directly_and_through_both_proxies() -> None:
    outcome = tiny("proxy")
    (table,) = outcome.tables
    assert [(row["way"], row["requests"]) for row in table.rows] == [
        ("direct", 2),
        ("LLM proxy", 2),
        ("LLM proxy with admission", 2),
    ]
    assert [target.value is not None for target in outcome.targets] == [True, True]


@pytest.mark.slow
def test_init_gets_every_task_ready_in_every_variant() -> None:
    (table,) = tiny("init").tables
    assert [row["way"] for row in table.rows] == list(init.LABELS.values())
    assert [(row["ready"], row["failures"], row["left_behind"]) for row in table.rows] == [(2, 0, 0)] * 4


@pytest.mark.slow
def test_recover_tells_every_caller_executes_nothing_twice_and_leaves_nothing_behind() -> None:
    outcome = tiny("recover")
    counts = {target.claim: target.value for target in outcome.targets if "÷" not in target.claim}
    assert len(counts) == 4
    assert set(counts.values()) == {0}


def test_overlap_makes_every_visit_in_every_mode_and_fetches_nothing_needless_without_guesses() -> None:
    outcome = tiny("overlap")
    *played, idle_calls, busy = outcome.tables
    assert [[row["way"] for row in table.rows] for table in played] == [list(overlap.MODES.values())] * 4
    for nothing, exact, _ in (table.rows for table in played):
        assert (nothing["early"], nothing["bytes"], exact["bytes"]) == (0, 1, 1)
    assert len(idle_calls.rows) == len(busy.rows) == 2
    assert all(target.value is not None for target in outcome.targets)


def test_idle_counts_the_sessions_it_holds() -> None:
    outcome = tiny("idle")
    assert [row["sessions"] for row in outcome.tables[0].rows] == [0, 2]
    assert outcome.tables[1].rows[0]["fds"] > 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the local backend needs Linux")
@pytest.mark.slow
def test_sandbox_asks_everybody_and_leaves_nothing_behind() -> None:
    outcome = tiny("sandbox")
    first, call, memory, storm = outcome.tables
    kernels = not any(note.startswith("Left out: ipykernel") for note in outcome.notes)
    assert [row["count"] for row in first.rows] == [1] * (3 + kernels)
    assert len(call.rows) == 3 + kernels
    assert [row["count"] for row in memory.rows] == [2, 1][: 1 + kernels]
    assert storm.rows[2]["count"] == 3
    measured = {target.claim: target.value for target in outcome.targets}
    assert (measured["ipykernel ÷ pool empty, first result p50"] is not None) == kernels
    assert measured["processes left behind"] == 0


@pytest.mark.slow
def test_servers_measures_what_it_names() -> None:
    outcome = tiny("servers")
    searches, ready, *pages = outcome.tables
    assert [row["connections"] for row in searches.rows] == [1, 1, 3]
    assert [(row["ready"], row["wanted"], row["processes"]) for row in ready.rows] == [(6, 6, 0), (6, 6, 0), (3, 3, 3)]
    left_out = [note for note in outcome.notes if note.startswith("Left out: browsers")]
    assert len(pages) + len(left_out) == 1
    assert all(row["processes"] > 0 for table in pages for row in table.rows)
    unknown = [target.claim for target in outcome.targets if target.value is None]
    assert all("browser" in claim for claim in unknown) and bool(unknown) == bool(left_out)


def test_decode_sends_every_kind_of_turn_to_both_engines_and_judges_their_calls() -> None:
    outcome = tiny("decode")
    (table,) = outcome.tables
    assert [(row["turn"], row["at_once"]) for row in table.rows] == [(kind, n) for kind in turns.KINDS for n in (1, 2)]
    assert all((row["valid"], row["valid_plain"], row["accepted"]) == (100, 100, 50) for row in table.rows)
    lost = next(target for target in outcome.targets if "lost" in target.claim)
    assert lost.value == 0 and all(target.value is not None for target in outcome.targets)


@pytest.mark.slow
def test_mirothinker_without_the_agent_plays_its_calls_in_every_variant_and_says_so() -> None:
    outcome = tiny("mirothinker")
    (table,) = outcome.tables
    assert table.title.startswith("A loop of the same calls, not MiroThinker itself")
    labels = [variant.label for variant in (mirothinker.AS_IT_IS, mirothinker.PRIVATE, mirothinker.RUNNING)]
    assert [row["way"] for row in table.rows] == labels
    assert any("git clone" in note for note in outcome.notes)


def test_a_checkout_whose_import_was_changed_is_refused(tmp_path: Path) -> None:
    agent = tmp_path / "apps" / "miroflow-agent"
    (agent / ".venv" / "bin").mkdir(parents=True)
    (agent / ".venv" / "bin" / "python").touch()
    (agent / "src" / "core").mkdir(parents=True)
    (agent / "src" / "core" / "pipeline.py").write_text("from toolhub.miroflow import ToolManager\n")
    with pytest.raises(SetupError, match="imports toolhub's ToolManager already"):
        mirothinker.run(mirothinker.MiroThinkerScale(turns=2, rounds=1, checkout=str(tmp_path)))


def test_a_checkout_without_an_environment_is_named_with_the_command_that_makes_one(tmp_path: Path) -> None:
    scale = mirothinker.MiroThinkerScale(turns=2, rounds=1, checkout=str(tmp_path))
    with pytest.raises(SetupError, match=f"in {tmp_path} .*uv sync"):
        mirothinker.run(scale)


@pytest.mark.slow
def test_a_run_that_did_not_make_every_call_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirothinker, "wanted", lambda turns: Counter(search=turns + 1))
    with pytest.raises(WorkerFailed, match="a process per call: ended with 0"):
        tiny("mirothinker")


def test_the_runner_keeps_what_is_needed_to_judge_a_result(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    question = Benchmark("idle", "?", idle.run, full=TINY["idle"], quick=TINY["idle"])
    monkeypatch.setattr(runner, "BENCHMARKS", {"idle": question})
    runner.main(["idle", "--quick", "--json", "--out", str(tmp_path)])
    printed = json.loads(capsys.readouterr().out)
    (path,) = (tmp_path / "results").glob("*/idle.json")
    kept = json.loads(path.read_text())
    assert kept == printed
    assert kept["command"] == "toolhub bench idle --quick"
    assert {"git", "machine", "noise", "raw", "tables", "targets"} <= set(kept)
    assert "| mean of 2 |" in (tmp_path / "README.md").read_text()
    alone = path.with_suffix(".md").read_text()
    assert alone.startswith("# idle: ?") and "| mean of 2 |" in alone


def test_a_quick_run_is_not_kept_by_itself(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    question = Benchmark("idle", "?", lambda _: Outcome(), full=None, quick=None)
    monkeypatch.setattr(runner, "BENCHMARKS", {"idle": question})
    monkeypatch.setattr(runner, "HERE", tmp_path)
    runner.main(["idle", "--quick"])
    assert list(tmp_path.iterdir()) == []
