"""A task from its question to its answer, with a real model server that says what it is told."""

from __future__ import annotations

import json

import anyio
import pytest
from llm_stand_in.answers import called, cut, failed, said
from toolhub_agent.agent import NO_ANSWER
from toolhub_agent.kv_hints.signals import TurnFinished
from toolhub_agent.types import EngineFields

from tests.toolhub_agent.loop_stage import LoopStage, search, use

pytestmark = pytest.mark.anyio


async def test_a_task_is_answered_with_what_its_tools_found(stage: LoopStage):
    stage.server.script(said("Let me look. " + search("capital of France")), said(r"It is \boxed{Paris}."))
    result = await stage.run("What is the capital of France?")
    assert (result.status, result.answer, result.turns, result.tool_calls) == ("success", "Paris", 2, 1)
    assert stage.tools.calls == [("search", "google_search", {"q": "capital of France"})]
    system, question, answer, found = stage.prompts[1]
    assert system["role"] == "system" and "google_search" in system["content"]
    assert question["content"].startswith("What is the capital of France?")
    assert answer == {"role": "assistant", "content": "Let me look. " + search("capital of France")}
    assert found == {"role": "user", "content": 'google_search of {"q": "capital of France"}'}


async def test_native_calls_go_into_history_with_their_ids_and_results(stage: LoopStage):
    stage.settings["protocol"] = "native"
    calls = called(("search-google_search", {"q": "a"}), ("python-run_python_code", {"code_block": "1"}))
    stage.server.script(calls, said(r"\boxed{1}"))
    result = await stage.run()
    assert result.answer == "1" and result.tool_calls == 2
    assert [tool["function"]["name"] for tool in stage.server.chats[0].body["tools"]] == [
        "search-google_search",
        "python-run_python_code",
    ]
    _, _, answer, *results = stage.prompts[1]
    ids = [call["id"] for call in answer["tool_calls"]]
    assert [message["tool_call_id"] for message in results] == ids
    assert [message["role"] for message in results] == ["tool", "tool"]


@pytest.mark.parametrize("asked", [False, True])
async def test_native_parallel_calls_are_asked_for_only_if_configured(stage: LoopStage, asked: bool):
    stage.settings |= {"protocol": "native", "ask_for_parallel_calls": asked}
    stage.server.script(said(r"\boxed{1}"))
    await stage.run()
    (request,) = stage.server.chats
    assert request.body.get("parallel_tool_calls") is (True if asked else None)
    assert ("Use several tools in one message" in request.body["messages"][0]["content"]) == asked


async def test_a_request_without_tools_asks_for_no_parallel_calls(stage: LoopStage):
    stage.settings |= {"ask_for_parallel_calls": True}  # XML: the tools are in the prompt
    stage.server.script(said(search("a") + "\n" + search("b")), said(r"\boxed{1}"))
    result = await stage.run()
    assert not any("parallel_tool_calls" in seen.body for seen in stage.server.chats)
    assert (result.turns, result.tool_calls, result.calls_per_turn) == (2, 2, 1.0)


async def test_the_log_of_a_task_shows_turns_calls_and_calls_per_turn(stage: LoopStage):
    stage.settings["protocol"] = "native"
    calls = [("search-google_search", {"q": query}) for query in "abc"]
    stage.server.script(called(*calls), said(r"\boxed{1}"))
    result = await stage.run()
    assert result.calls_per_turn == 1.5 and result.log is not None
    *_, record = [json.loads(line) for line in result.log.with_suffix(".jsonl").read_text().splitlines()]
    assert {name: record[name] for name in ("kind", "turns", "tool_calls", "calls_per_turn")} == {
        "kind": "result", "turns": 2, "tool_calls": 3, "calls_per_turn": 1.5,
    }  # fmt: skip
    steps = json.loads(result.log.read_text())["step_logs"]
    assert "2 turns, 3 tool calls, 1.5 calls per turn" in [step["message"] for step in steps]


async def test_each_turn_only_adds_to_the_prompt_of_the_one_before(stage: LoopStage):
    turns = [said(search(f"query {number}")) for number in range(4)]
    stage.server.script(*turns, said(r"\boxed{x}"))
    await stage.run()
    for before, after in zip(stage.prompts, stage.prompts[1:], strict=False):
        assert after[: len(before)] == before


async def test_calls_of_one_turn_run_together_and_their_results_keep_its_order(stage: LoopStage):
    first_runs, second_ran = anyio.Event(), anyio.Event()

    async def meet(arguments):
        if arguments["q"] == "first":
            first_runs.set()
            await second_ran.wait()
        else:
            await first_runs.wait()
            second_ran.set()
        return f"found {arguments['q']}"

    stage.tools.answers["google_search"] = meet
    stage.server.script(said(search("first") + "\n" + search("second")), said(r"\boxed{x}"))
    await stage.run()
    assert stage.prompts[1][-1]["content"] == "found first\nfound second"


async def test_a_read_only_call_starts_while_the_model_still_writes(stage: LoopStage):
    started = anyio.Event()

    async def begin(arguments):
        started.set()
        return "found"

    stage.tools.answers["google_search"] = begin
    stage.server.script(said(search("now"), " and more text", "", hold=True, after=1), said(r"\boxed{x}"))

    async def release_when_started():
        await started.wait()
        stage.server.release()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(release_when_started)
        result = await stage.run()
    assert result.answer == "x" and result.log is not None
    records = [json.loads(line) for line in result.log.with_suffix(".jsonl").read_text().splitlines()]
    (call,) = [record for record in records if record["kind"] == "call_started"]
    assert (call["early"], call["turn"]) == (True, 1)


async def test_a_call_that_waits_for_the_turn_s_end_is_logged_as_that_turn_s(stage: LoopStage):
    stage.settings["eager"] = "none"
    stage.server.script(said(search("a")), said(r"\boxed{x}"))
    result = await stage.run()
    assert result.log is not None
    records = [json.loads(line) for line in result.log.with_suffix(".jsonl").read_text().splitlines()]
    calls = [record for record in records if record["kind"] in ("call_started", "call_finished")]
    assert [record["turn"] for record in calls] == [1, 1] and calls[0]["early"] is False


async def test_a_call_in_the_wrong_server_s_name_reaches_the_right_one(stage: LoopStage):
    stage.server.script(said(use("google_search", {"q": "a"}, server="tool-python")), said(r"\boxed{x}"))
    await stage.run()
    assert stage.tools.calls == [("search", "google_search", {"q": "a"})]


async def test_arguments_that_are_no_object_become_an_error_for_the_model_and_reach_no_tool(stage: LoopStage):
    stage.server.script(said(use("run_python_code", "[1, 2]", server="python")), said(r"\boxed{x}"))
    result = await stage.run()
    assert stage.tools.calls == [] and result.status == "success"
    told = stage.prompts[1][-1]["content"]
    assert told.startswith("Tool call to run_python_code on python failed. Error: ")
    assert told.count("failed. Error:") == 1


async def test_what_a_foreign_tool_manager_raises_becomes_an_error_for_the_model(stage: LoopStage):
    stage.tools.answers["google_search"] = RuntimeError("broken pipe")
    stage.server.script(said(search("a")), said(r"\boxed{x}"))
    await stage.run()
    assert stage.prompts[1][-1]["content"] == "Tool call to google_search on search failed. Error: broken pipe"


async def test_a_call_inside_the_model_s_thoughts_is_not_made(stage: LoopStage):
    stage.server.script(said("<think>" + search("no") + "</think>" + search("yes")), said(r"\boxed{x}"))
    await stage.run()
    assert [arguments["q"] for _, _, arguments in stage.tools.calls] == ["yes"]


async def test_without_a_boxed_answer_the_model_is_asked_for_one(stage: LoopStage):
    stage.server.script(said("I think it is 4."), said(r"\boxed{4}"))
    result = await stage.run()
    assert result.answer == "4" and "\\boxed{}" in stage.prompts[1][-1]["content"]


async def test_a_task_without_any_answer_fails_in_miroflow_s_words(stage: LoopStage):
    stage.server.usual = lambda seen: said("no idea")
    result = await stage.run()
    assert (result.status, result.answer) == ("failed", NO_ANSWER)


async def test_when_the_turns_are_used_up_the_last_result_is_kept_for_the_answer(stage: LoopStage):
    stage.settings["max_turns"] = 2
    stage.server.script(said(search("a")), said(search("b")), said(r"\boxed{late}"))
    result = await stage.run()
    assert (result.answer, result.stopped, result.turns) == ("late", "max_turns", 2)
    assert any('"q": "b"' in message["content"] for message in stage.prompts[2])


async def test_only_the_last_results_stay_in_the_prompt(stage: LoopStage):
    stage.settings["keep_tool_result"] = 1
    stage.server.script(*(said(search(f"q{number}")) for number in range(3)), said(r"\boxed{x}"))
    await stage.run()
    results = [message["content"] for message in stage.prompts[3] if message["role"] == "user"][1:]
    assert results == ["Tool result is omitted to save tokens."] * 2 + ['google_search of {"q": "q2"}']


async def test_an_answer_that_breaks_off_is_asked_for_again(stage: LoopStage):
    stage.server.script(cut("a ", "b ", after=1), said(r"\boxed{whole}"))
    result = await stage.run()
    assert result.answer == "whole" and result.turns == 1


async def test_a_model_that_refuses_the_request_ends_the_task_with_its_reason(stage: LoopStage):
    stage.server.usual = lambda seen: failed(401, "bad key")
    result = await stage.run()
    assert result.status == "failed" and result.stopped == "llm_failed" and "bad key" in (result.error or "")
    assert len(stage.server.chats) == 1


async def test_a_cut_off_answer_is_sampled_again_with_more_room(stage: LoopStage):
    stage.settings["sampling"] = {"max_tokens": 100}
    stage.server.script(said("a long", finish_reason="length"), said(r"\boxed{x}"))
    result = await stage.run()
    assert result.turns == 1
    assert [seen.body["max_tokens"] for seen in stage.server.chats] == [100, 110]
    assert stage.prompts[0] == stage.prompts[1]


async def test_events_tell_the_task_in_miroflow_s_order(stage: LoopStage):
    stage.server.script(said(search("a")), said(r"\boxed{x}"))
    await stage.run()
    assert stage.sink.events[-1] is None
    names = [event["event"] for event in stage.sink.events[:-1]]
    assert names[:3] == ["start_of_workflow", "start_of_agent", "start_of_llm"]
    assert names[-2:] == ["end_of_agent", "end_of_workflow"]
    calls = [event["data"] for event in stage.sink.events[:-1] if event["event"] == "tool_call"]
    real = [data for data in calls if data["tool_name"] == "google_search"]
    assert len({data["tool_call_id"] for data in real}) == 1
    assert [list(data["tool_input"]) for data in real] == [["q"], ["result"]]


async def test_the_log_tells_the_whole_task_in_miroflow_s_form(stage: LoopStage):
    stage.server.script(said(search("a")), said(r"\boxed{x}"))
    result = await stage.run("Who?")
    assert result.log is not None
    document = json.loads(result.log.read_text())
    assert document["status"] == "success" and document["final_boxed_answer"] == "x"
    history = document["main_agent_message_history"]["message_history"]
    assert [message["role"] for message in history] == ["user", "assistant", "user", "assistant"]


async def test_a_hidden_tool_is_neither_shown_nor_called(stage: LoopStage):
    stage.settings["hidden_tools"] = ["search/google_search"]
    stage.server.script(said(search("a")), said(r"\boxed{x}"))
    result = await stage.run()
    assert "google_search" not in stage.prompts[0][0]["content"]
    assert stage.tools.calls == [] and result.rollbacks == 1


async def test_what_hints_ask_to_send_along_is_sent_with_the_request(stage: LoopStage):
    class Adding(type(stage.hints)):
        def engine_fields(self, session, endpoint):
            return EngineFields(headers={"x-hint": "1"}, body={"vllm_xargs": {"pin_ttl_s": 5.0}})

    stage.hints = Adding()
    stage.server.script(said(r"\boxed{x}"))
    await stage.run()
    (asked,) = stage.server.chats
    assert asked.headers["x-hint"] == "1" and asked.body["vllm_xargs"] == {"pin_ttl_s": 5.0}


async def test_the_prompt_told_to_hints_has_everything_that_shapes_it(stage: LoopStage):
    stage.settings |= {"protocol": "native", "sampling": {"extra_body": {"chat_template_kwargs": {"thinking": True}}}}
    stage.server.script(called(("search-google_search", {"q": "a"})), said(r"\boxed{x}"))
    await stage.run()
    (finished,) = [signal for signal in stage.hints.signals if isinstance(signal, TurnFinished)]
    sent = stage.server.chats[1].body
    for name in ("model", "tools", "tool_choice", "chat_template_kwargs"):
        assert finished.prompt.body[name] == sent[name]
