"""The benchmarks of model servers, end to end against a stand-in, and their pure parts. Engines are left to the bench.

The stand-in has a real prefix cache but computes nothing, so that counts are checked here and times are not.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from toolhub_agent.tool_calls.xml_calls import XmlCallReader
from toolhub_agent.types import Completion, Usage

from benchmarks import runner
from benchmarks.common.result import Benchmark, Outcome
from benchmarks.gpu.measure import Machine, questions
from benchmarks.kv import benchmark as kv
from benchmarks.kv import results as kv_results
from benchmarks.kv import tables as kv_tables
from benchmarks.kv.history import EXACT, STRIDE, computed_of, metric_in
from benchmarks.llm.prompts import Writer, words
from benchmarks.llm.scripted_agent import Served, call_text
from benchmarks.loop import benchmark as loop
from benchmarks.loop.dispatch import TURNS
from benchmarks.loop.long_task import script as long_script
from benchmarks.loop.long_task import summary
from benchmarks.loop.many_agents import OURS, PLAIN
from testbed.engine.install import EngineSetupError
from tests.benchmarks.stand_in_engine import TINY_KV, TINY_LOOP


@pytest.fixture(scope="module")
def kv_outcome() -> Outcome:
    return kv.run(TINY_KV)


@pytest.fixture(scope="module")
def loop_outcome() -> Outcome:
    return loop.run(TINY_LOOP)


@pytest.mark.slow
def test_fillers_push_a_prompt_out_of_the_cache_and_without_them_it_stays(kv_outcome: Outcome) -> None:
    trials = kv_outcome.raw["waits"]["trials"]
    (kept,), (lost,) = trials[kv_results.REFERENCE], trials[kv_results.NOTHING]
    assert kept["cached"] > 0.8 * kept["prompt"]
    assert lost["cached"] < 0.5 * lost["prompt"]  # the description of the tools is in every prompt
    assert abs(kept["prompt"] - lost["prompt"]) < 0.1 * kept["prompt"]


@pytest.mark.slow
def test_every_variant_to_wait_was_measured_or_says_why_not(kv_outcome: Outcome) -> None:
    variants = set(kv_outcome.raw["waits"]["trials"]) | set(kv_outcome.raw["pinned"]["trials"])
    left_out = [note for note in kv_outcome.notes if note.startswith("Left out")]
    assert variants | ({kv_results.LLM_PROXY} if left_out else set()) == set(kv_tables.VARIANTS)


@pytest.mark.slow
def test_strides_have_less_computed_than_exact_keeping_for_the_same_turns(kv_outcome: Outcome) -> None:
    told = kv_outcome.raw["keep"]
    (exact,), (stride,) = told[EXACT.name], told[STRIDE.name]
    assert exact["turns"] == stride["turns"] == TINY_KV.talk.turns
    assert computed_of(stride) < computed_of(exact)


@pytest.mark.slow
def test_a_mix_does_the_same_work_with_hints_and_without(kv_outcome: Outcome) -> None:
    rounds = kv_outcome.raw["mix"]["rounds"]
    (off,), (on,) = rounds["off"], rounds["on"]
    assert off["completion"] == on["completion"] > 0
    assert abs(off["prompt"] - on["prompt"]) < 0.1 * off["prompt"]


@pytest.mark.slow
def test_calls_that_are_dispatched_after_the_turn_never_start_before_its_end(loop_outcome: Outcome) -> None:
    (variants,) = loop_outcome.raw["dispatch"].values()
    assert set(variants) == {"one by one", "together", "streaming"}
    assert [variants[variant][0]["early"] for variant in ("one by one", "together")] == [0, 0]


@pytest.mark.slow
def test_a_hub_asks_the_search_service_once_for_equal_queries(loop_outcome: Outcome) -> None:
    ((case, loops),) = loop_outcome.raw["agents"].items()
    assert loops[PLAIN][0]["executions"] == 3, case
    assert loops[OURS][0]["executions"] == 2, case


@pytest.mark.slow
def test_a_long_task_calls_a_real_tool_in_every_turn_but_the_last(loop_outcome: Outcome) -> None:
    (told,) = loop_outcome.raw["task"]
    assert (told["turns"], told["tool_calls"]) == (4, 3)
    assert told["cached_share"] > 0.5


@pytest.mark.slow
def test_without_an_engine_one_question_says_what_to_do_and_all_go_on_with_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: None) -> Outcome:
        raise EngineSetupError("run: make engine")

    questions = {"kv": Benchmark("kv", "?", refuse, full=None, quick=None)}
    monkeypatch.setattr(runner, "BENCHMARKS", questions)
    with pytest.raises(SystemExit, match="1"):
        runner.main(["kv", "--quick"])
    assert "kv is left out: run: make engine" in capsys.readouterr().err
    questions["idle"] = Benchmark("idle", "?", lambda _: Outcome(), full=None, quick=None)
    runner.main(["all", "--quick"])
    said = capsys.readouterr().err
    assert "1 of 2 questions answered" in said and "Left out: kv (run: make engine)." in said


# --- pure parts -------------------------------------------------------------------------------------------------------


def test_what_the_model_shall_write_is_read_as_the_calls_that_are_meant() -> None:
    for turn in TURNS:
        assert len(XmlCallReader().feed(turn.text)) == len(turn.tool_s)
    assert [len(XmlCallReader().feed(text)) for text in long_script(20)] == [1] * 19 + [0]
    (call,) = XmlCallReader().feed(call_text('a "quoted" question'))
    assert call.arguments == {"q": 'a "quoted" question'}


def test_sglang_is_held_to_a_text_by_a_pattern_that_matches_only_it() -> None:
    pattern = Served("http://127.0.0.1:1/v1", kind="sglang").only("f(x)*")["regex"]
    assert re.fullmatch(pattern, "f(x)*") and not re.fullmatch(pattern, "fx")


def test_fresh_texts_differ_from_their_first_word_on_and_given_seeds_repeat() -> None:
    writer = Writer(per_word=1.5)
    one, other = writer.fresh(300), writer.fresh(300)
    assert one.split()[0] != other.split()[0]
    assert writer.text(300) == writer.text(300)
    assert len(words(40, "seed").split()) == 40


def test_a_metric_is_summed_over_its_labels_and_told_apart_from_longer_names() -> None:
    page = '# HELP a_sum x\na_sum{engine="0"} 3\na_sum{engine="1"} 4.5\na_sum_more 100\n'
    assert metric_in(page, "a_sum") == 7.5
    assert metric_in(page, "b_sum") is None


def test_the_cached_share_leaves_out_the_first_turn_which_nobody_could_know() -> None:
    turns = [Completion("", usage=Usage(100, 1, cached), ttft=0.1, seconds=0.2) for cached in (0, 90, 80)]
    assert summary(turns)["cached_share"] == 0.85


# --- the same on a machine with a GPU ---------------------------------------------------------------------------------


def machine(**fields: Any) -> Machine:
    usual: dict[str, Any] = {
        "kind": "vllm",
        "program": "vllm",
        "model": "/models/qwen",
        "scale": 4,
        "longest": 131_072,
        "random": False,
        "extra": ["--seed=1"],
        "log": Path("engine.log"),
    }
    return Machine(**usual | fields)


def test_the_cut_cache_of_vllm_holds_as_many_tokens_as_are_meant_and_one_block_is_reserved() -> None:
    wanted = machine().cache_tokens
    command = machine().command(1234, cache=wanted)
    values = dict(part.removeprefix("--").split("=") for part in command if "=" in part)
    assert (int(values["num-gpu-blocks-override"]) - 1) * int(values["block-size"]) == wanted
    assert int(values["max-model-len"]) <= wanted
    assert command[-1] == "--seed=1"
    assert "--scheduler-cls" not in " ".join(command)


def test_pins_are_asked_of_vllm_alone() -> None:
    def pinning(kind: str, **how: Any) -> bool:
        (question, _) = questions(machine(kind=kind), quick=True, **how)
        return question.full.engines.pinning is not None

    assert pinning("vllm", pins=True)
    assert not pinning("vllm", pins=False)
    assert not pinning("sglang", pins=True)


def test_prompts_on_a_gpu_grow_with_the_cache_so_that_the_fillers_still_fill_it() -> None:
    small, large = (questions(machine(scale=by), pins=True, quick=False)[0].full for by in (1, 4))
    assert large.sizes.filler * large.sizes.fillers / large.engines.cache_tokens > 0.9
    assert large.sizes.prompt == 4 * small.sizes.prompt
    assert large.sizes.tool_s == small.sizes.tool_s
