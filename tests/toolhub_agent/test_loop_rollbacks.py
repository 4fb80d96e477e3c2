"""Turns that are taken back: nothing of them stays, and what they started is ended or used again."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from llm_stand_in.answers import Answer, Fault, said
from toolhub_agent.tasklog import read_log

from tests.toolhub_agent.loop_stage import LoopStage, search, use

pytestmark = pytest.mark.anyio


async def test_a_turn_with_a_broken_call_is_sampled_again_without_a_word(stage: LoopStage):
    broken = search("a").replace("</use_mcp_tool>", "")
    stage.server.script(said(broken), said(r"\boxed{x}"))
    result = await stage.run()
    assert (result.rollbacks, result.turns) == (1, 1)
    assert stage.prompts[0] == stage.prompts[1]


async def test_an_unknown_tool_takes_the_turn_back(stage: LoopStage):
    stage.server.script(said(use("nope", {})), said(r"\boxed{x}"))
    result = await stage.run()
    assert result.rollbacks == 1 and stage.prompts[1] == stage.prompts[0]


async def test_after_four_in_a_row_the_fifth_turn_stands(stage: LoopStage):
    stage.server.script(*[said(use("nope", {}))] * 5, said(r"\boxed{x}"))
    result = await stage.run()
    assert (result.rollbacks, result.turns) == (4, 2)
    assert stage.prompts[5][-1]["content"] == "Unknown tool: nope"


async def test_a_repeated_query_is_refused_before_it_is_sent_and_cuts_the_answer_short(stage: LoopStage):
    stage.server.script(
        said(search("a")), said(search("a"), "never sent", hold=True, after=1), said(search("b")), said(r"\boxed{x}")
    )
    result = await stage.run()
    assert [arguments["q"] for _, _, arguments in stage.tools.calls] == ["a", "b"]
    assert result.rollbacks == 1


async def test_a_search_that_found_nothing_may_be_tried_again_in_the_same_words(stage: LoopStage):
    async def second_time(arguments):
        return '{"organic": []}' if len(stage.tools.calls) == 1 else '{"organic": [{"link": "a"}]}'

    stage.tools.answers["google_search"] = second_time
    stage.server.script(said(search("a")), said(search("a")), said(r"\boxed{x}"))
    result = await stage.run()
    assert (result.rollbacks, len(stage.tools.calls)) == (1, 2)
    assert "link" in stage.prompts[2][-1]["content"]


async def test_a_backend_s_error_reaches_the_model_instead_of_costing_a_turn(stage: LoopStage):
    stage.tools.answers["google_search"] = '{"success": false, "error": "no key", "results": []}'
    stage.server.script(said(search("a")), said(r"\boxed{x}"))
    result = await stage.run()
    assert result.rollbacks == 0 and "no key" in stage.prompts[1][-1]["content"]


async def test_what_a_taken_back_turn_found_is_not_paid_for_twice(stage: LoopStage):
    async def fail_after_the_search(arguments):
        while "google_search" not in stage.tools.finished:
            await anyio.sleep(0)
        return "Error executing tool run_python_code: boom"

    stage.tools.answers["run_python_code"] = fail_after_the_search
    both = search("a") + use("run_python_code", {"code_block": "1"}, server="python")
    stage.server.script(said(both), said(search("a")), said(r"\boxed{x}"))
    await stage.run()
    assert [tool for _, tool, _ in stage.tools.calls] == ["google_search", "run_python_code"]
    assert stage.prompts[2][-1]["content"] == 'google_search of {"q": "a"}'
    assert stage.log is not None and stage.log.path is not None
    # A resumed task must know that this was asked.
    assert [call.arguments for call in read_log(stage.log.path).main.calls] == [{"q": "a"}]


async def test_what_was_found_before_a_turn_showed_itself_worthless_is_kept_too(stage: LoopStage):
    found = anyio.Event()

    async def search_then_tell(arguments):
        if arguments["q"] == "b":
            found.set()
        return f"found {arguments['q']}"

    stage.tools.answers["google_search"] = search_then_tell
    worthless = said(search("b"), search("a"), hold=True, after=1)
    stage.server.script(said(search("a")), worthless, said(search("b")), said(r"\boxed{x}"))

    async def go_on_when_found():
        await found.wait()
        stage.server.release()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go_on_when_found)
        await stage.run()
    assert [arguments["q"] for _, _, arguments in stage.tools.calls] == ["a", "b"]
    assert stage.prompts[3][-1]["content"] == "found b"


async def test_calls_that_run_when_their_turn_is_taken_back_are_cancelled(stage: LoopStage):
    cancelled = anyio.Event()

    async def forever(arguments):
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    stage.tools.answers["google_search"] = forever
    stage.server.script(said(search("a") + use("nope", {})), said(r"\boxed{x}"))
    result = await stage.run()
    assert cancelled.is_set() and result.answer == "x"


async def test_a_refusal_is_sampled_again(stage: LoopStage):
    stage.server.script(said("Given the time constraint I must stop."), said(r"\boxed{x}"))
    assert (await stage.run()).rollbacks == 1


def records_of(stage: LoopStage, kind: str) -> list[Any]:
    assert stage.log is not None and stage.log.path is not None
    records = [json.loads(line) for line in stage.log.path.read_text().splitlines()]
    return [record for record in records if record["kind"] == kind]


async def run_with_an_endless_early_call(stage: LoopStage, dropped: Answer) -> None:
    """Search for `a`, then for `b` in a turn that does not stay. The model goes on with it when `b` has begun."""
    begun = anyio.Event()

    async def find_a_only(arguments):
        if arguments["q"] == "b":
            begun.set()
            await anyio.sleep_forever()
        return "found"

    async def go_on_when_begun():
        await begun.wait()
        stage.server.release()

    stage.tools.answers["google_search"] = find_a_only
    stage.server.script(said(search("a")), dropped, said(search("c")), said(r"\boxed{x}"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go_on_when_begun)
        await stage.run()


@pytest.mark.parametrize(
    ("dropped", "reason"),
    [
        (said(search("b"), search("a"), hold=True, after=1), "search/google_search was asked this before"),
        (said(search("b"), " and", hold=True, after=1, fault=Fault.CUT), "RemoteProtocolError"),
    ],
    ids=["rolled back", "the stream breaks"],
)
async def test_the_log_says_which_calls_were_cancelled_with_their_turn(
    stage: LoopStage, dropped: Answer, reason: str
) -> None:
    await run_with_an_endless_early_call(stage, dropped)
    (record,) = records_of(stage, "turn_dropped")
    assert (record["turn"], record["cancelled"]) == (2, [{"index": 0, "server": "search", "tool": "google_search"}])
    assert reason in record["reason"]
    (cancelled,) = [step for step in read_log(stage.log.path).steps if step.name.endswith("Cancelled")]
    assert "google_search" in cancelled.message


async def test_a_query_of_a_turn_that_did_not_stay_does_not_count_as_asked_after_a_resume(stage: LoopStage) -> None:
    await run_with_an_endless_early_call(stage, said(search("b"), search("a"), hold=True, after=1))
    assert [call.arguments for call in read_log(stage.log.path).main.calls] == [{"q": "a"}, {"q": "c"}]
