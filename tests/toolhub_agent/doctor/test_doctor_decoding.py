"""`toolhub doctor --llm A --against B`: a recipe is used where it pays, and refused where it loses tool calls."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from llm_stand_in.answers import Answer, called, failed, said
from llm_stand_in.model_server import ModelServer, Seen
from toolhub_agent.doctor.decoding import (
    CallTurn,
    Comparison,
    DraftCounts,
    LevelResult,
    LoadResult,
    Verdict,
    copy_turn,
    draft_counts,
)
from toolhub_agent.llm.accumulator import AnswerAccumulator
from toolhub_command import Shell

# --- Rules ------------------------------------------------------------------------------------------------------------


def load(valid: int = 8, *, tokens: int = 100, faults: dict[str, int] | None = None, drafted: int | None = None) -> Any:
    drafts = None if drafted is None else DraftCounts(drafted, drafted // 2)
    return LoadResult(8, valid, tokens, 1.0, drafts, Counter(faults or {}))


def level(at_once: int, recipe: LoadResult, plain: LoadResult) -> LevelResult:
    return LevelResult(at_once, recipe, plain)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("recipe", "plain", "verdict"),
    [
        (load(tokens=200), load(), Verdict.USE),
        (load(tokens=103), load(), Verdict.NO_GAIN),
        (load(tokens=80), load(), Verdict.SLOWER),
        (load(7, tokens=900), load(8), Verdict.REFUSED),
        (load(0, tokens=900), load(0), Verdict.UNKNOWN),
        (load(8), load(7), Verdict.NO_GAIN),
    ],
)
def test_lost_calls_are_judged_before_speed(recipe: LoadResult, plain: LoadResult, verdict: Verdict) -> None:
    assert level(4, recipe, plain).verdict is verdict


@pytest.mark.quick
def test_the_conclusion_says_at_which_concurrency_to_use_it() -> None:
    found = Comparison("a", "b", is_whole=True)
    found.levels = [
        level(1, load(tokens=250, drafted=9), load()),
        level(4, load(tokens=150, drafted=9), load()),
        level(16, load(tokens=80, drafted=9), load()),
    ]
    assert found.conclusion() == [
        "Use it at 1 and 4 at once (2.50 x, 1.50 x); do not use it, because it is slower, at 16 at once (0.80 x). "
        "No valid tool call was lost."
    ]


@pytest.mark.quick
def test_a_loss_at_one_level_refuses_the_recipe_with_its_causes() -> None:
    found = Comparison("a", "b", is_whole=True)
    torn = load(5, tokens=900, drafted=9, faults={"its arguments are not JSON": 2, "the answer has no call": 1})
    found.levels = [level(1, load(tokens=900, drafted=9), load()), level(16, torn, load(8))]
    assert found.is_refused
    assert found.conclusion() == [
        "Do not use it: at 16 at once, 5 of 8 tool calls were valid with it and 8 without. "
        "Cause: 2 x its arguments are not JSON, 1 x the answer has no call."
    ]


def answered(*calls: tuple[str, str], finish: str = "tool_calls") -> AnswerAccumulator:
    answer = AnswerAccumulator()
    deltas = [{"index": at, "id": f"c{at}", "function": {"name": n, "arguments": a}} for at, (n, a) in enumerate(calls)]
    answer.feed({"choices": [{"index": 0, "delta": {"tool_calls": deltas}, "finish_reason": finish}]})
    answer.finish()
    return answer


def entries_of(turn: CallTurn) -> list[str]:
    return str(turn.body["messages"][1]["content"]).splitlines()[1:]


@pytest.mark.quick
def test_every_way_to_spoil_a_call_is_told_apart() -> None:
    turn = copy_turn(2)
    entries = entries_of(turn)[:4]
    whole = json.dumps({"entries": entries})
    assert turn.find_fault(answered(("save_entries", whole))) is None
    spoilt = {
        "the answer has no call": answered(),
        "the answer was cut off": answered(("save_entries", whole[:30]), finish="length"),
        "its tool does not exist": answered(("save_save_entries", whole)),
        "its arguments are not JSON": answered(("save_entries", whole.replace("]", '"]'))),
        "its arguments are no object": answered(("save_entries", "[]")),
        "its arguments are empty": answered(("save_entries", "{}")),
        "its arguments do not fit the tool's schema": answered(("save_entries", json.dumps({"entries": entries[:3]}))),
        "a text in it was copied wrongly": answered(("save_entries", whole.replace("the ", "the the ", 1))),
        "there is more than one call": answered(("save_entries", whole), ("save_entries", whole)),
    }
    assert {turn.find_fault(answer) for answer in spoilt.values()} == set(spoilt)
    assert all(turn.find_fault(answer) == name for name, answer in spoilt.items())


@pytest.mark.quick
def test_two_turns_share_no_entry_and_every_second_is_held_to_the_schema() -> None:
    turns = [copy_turn(number) for number in range(20)]
    entries = [entry for turn in turns for entry in entries_of(turn)]
    assert len(set(entries)) == len(entries)
    assert [turn.body["tool_choice"] == "auto" for turn in turns] == [True, False] * 10


@pytest.mark.quick
def test_draft_counts_are_summed_over_ranks_and_none_without_speculation() -> None:
    page = (
        'vllm:spec_decode_num_draft_tokens_total{engine="0"} 30.0\n'
        'vllm:spec_decode_num_draft_tokens_total{engine="1"} 1e+1\n'
        'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 20.0\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 9.0\n'
    )
    assert draft_counts(page) == DraftCounts(40, 20)
    assert draft_counts("vllm:num_requests_running 0.0\n") is None


# --- The command ------------------------------------------------------------------------------------------------------


def copied(seen: Seen) -> Answer:
    """As a good model answers."""
    entries = str(seen.body["messages"][1]["content"]).splitlines()[1:5]
    return called(("save_entries", {"entries": entries}))


def torn(seen: Seen) -> Answer:
    """As above, but a call that the model begins by itself has a duplicated quote."""
    whole = copied(seen)
    if seen.body["tool_choice"] != "auto":
        return whole
    ((name, arguments),) = whole.tool_calls
    return called((name, json.dumps(arguments).replace('",', '"",', 1)))


def drafting(server: ModelServer, answer: Callable[[Seen], Answer]) -> None:
    """Let a server count drafts, half of which are accepted."""
    server.load.drafted = 0

    def count(seen: Seen) -> Answer:
        server.load.drafted = (server.load.drafted or 0) + 10
        server.load.accepted += 5
        return answer(seen)

    server.usual = count


def test_the_same_turns_go_to_both_servers_at_1_4_and_16_at_once(
    shell: Shell, server: ModelServer, other_server: ModelServer
) -> None:
    drafting(server, copied)
    other_server.usual = copied
    told = shell.json("doctor", "--llm", server.root, "--against", other_server.root)
    assert not told["refused"]
    assert [(each["at_once"], each["recipe"]["requests"]) for each in told["levels"]] == [(1, 6), (4, 16), (16, 32)]
    for each in told["levels"]:
        assert each["recipe"]["valid"] == each["plain"]["valid"] == each["recipe"]["requests"]
        assert each["recipe"]["acceptance"] == 0.5 and each["plain"]["acceptance"] is None
    asked = [sorted(json.dumps(seen.body, sort_keys=True) for seen in each.chats) for each in (server, other_server)]
    assert asked[0] == asked[1] and len(set(asked[0])) == len(asked[0])
    assert server.most_running <= 16 and other_server.most_running <= 16


def test_a_recipe_that_loses_calls_is_refused_with_the_cause(
    shell: Shell, server: ModelServer, other_server: ModelServer
) -> None:
    drafting(server, torn)
    other_server.usual = copied
    done = shell("doctor", "--llm", server.root, "--against", other_server.root)
    assert done.returncode == 1
    assert "refused" in done.stdout and "3 of 6" in done.stdout and "50%" in done.stdout
    assert "27 of 54 tool calls were valid with it and 54 without" in done.stdout
    assert "Cause: 27 x its arguments are not JSON." in done.stdout


def test_requests_that_fail_with_the_recipe_count_as_lost_calls(
    shell: Shell, server: ModelServer, other_server: ModelServer
) -> None:
    first = iter([copied, copied])  # the first requests, which are not counted
    drafting(server, lambda seen: next(first, lambda _seen: failed(500, "grammar rejected tokens"))(seen))
    other_server.usual = copied
    told = shell.json("doctor", "--llm", server.root, "--against", other_server.root, code=1)
    assert told["refused"] and "grammar rejected tokens" in told["conclusion"][0]


def test_a_model_that_makes_no_calls_decides_nothing(
    shell: Shell, server: ModelServer, other_server: ModelServer
) -> None:
    server.usual = other_server.usual = lambda seen: said("I would rather talk.")
    done = shell("doctor", "--llm", server.root, "--against", other_server.root)
    assert done.returncode == 0
    assert "Not decided: at 1, 4 and 16 at once, no tool call was valid on either server" in done.stdout
    assert "count no drafted tokens: does it have the recipe?" in done.stdout


def test_what_cannot_be_compared_is_refused(shell: Shell, server: ModelServer, other_server: ModelServer) -> None:
    assert "--against needs --llm" in shell.refusal("doctor", "--against", server.root)
    assert "are the same server" in shell.refusal("doctor", "--llm", server.root, "--against", server.url)
    other_server.models[:] = ["another"]
    told = shell.json("doctor", "--llm", server.root, "--against", other_server.root, code=1)
    assert "'m' and 'another'" in told["error"]
    told = shell.json("doctor", "--llm", server.root, "--against", "http://127.0.0.1:1", code=1)
    assert told["error"].startswith("http://127.0.0.1:1/v1: ") and not server.chats


def test_a_server_that_drafts_is_told_how_to_compare_it(shell: Shell, server: ModelServer) -> None:
    server.load.drafted, server.load.accepted = 200, 130
    found = {each["check"]: each for each in shell.json("doctor", "--llm", server.root)["findings"]}
    assert found["speculation"]["detail"] == "on; 65% of the drafted tokens were accepted"
    assert "--against URL" in found["speculation"]["advice"]
