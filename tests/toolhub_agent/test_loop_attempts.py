"""Sub-agents, fresh starts, and going on where a killed process stopped."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from llm_stand_in.answers import said
from toolhub_agent.kv_hints import signals
from toolhub_agent.tasklog import TaskLog

from tests.toolhub_agent.loop_stage import LoopStage, NotingTools, search, use

pytestmark = pytest.mark.anyio

SUB_AGENT = {"sub_agents": {"browsing": {"servers": ["search"], "max_turns": 3}}}


def ask(subtask: str) -> str:
    return use("search_and_browse", {"subtask": subtask}, server="agent-browsing")


async def test_a_sub_agent_works_in_a_conversation_of_its_own_and_its_report_is_the_result(stage: LoopStage):
    stage.settings |= SUB_AGENT
    stage.server.script(
        said(ask("find x")), said(search("x")), said("Done."), said("Report: x is 1."), said(r"\boxed{1}")
    )
    result = await stage.run()
    assert result.answer == "1" and result.tool_calls == 1
    sub = stage.prompts[1]
    assert sub[1]["content"] == "find x" and "run_python_code" not in sub[0]["content"]
    assert stage.prompts[4][-1]["content"] == "Report: x is 1."
    sessions = [seen.headers["x-session-id"] for seen in stage.server.chats]
    assert sessions[0] == sessions[4] and len(set(sessions[1:4])) == 1 and sessions[1] != sessions[0]


async def test_tokens_of_sub_agents_are_counted(stage: LoopStage):
    stage.settings |= SUB_AGENT
    stage.server.script(said(ask("find x")), said("Done."), said("Report"), said(r"\boxed{1}"))
    result = await stage.run()
    assert result.usage.prompt_tokens == sum(counted.prompt for counted in stage.server.counted)


async def test_sub_agents_of_one_turn_work_side_by_side(stage: LoopStage):
    stage.settings |= SUB_AGENT
    both = anyio.Event()
    seen: set[str] = set()

    async def meet(arguments):
        seen.add(arguments["q"])
        if len(seen) == 2:
            both.set()
        await both.wait()
        return "found"

    def answer(request):
        last = request.body["messages"][-1]["content"]
        if last in ("one", "two"):
            return said(search(last))
        if last.startswith("found"):
            return said("Done.")
        return said("Report.") if "report" in last else said(r"\boxed{1}")

    stage.tools.answers["google_search"] = meet
    stage.server.script(said(ask("one") + ask("two")))
    stage.server.usual = answer
    assert (await stage.run()).answer == "1"


async def test_the_sub_agents_own_history_stands_in_the_log(stage: LoopStage):
    stage.settings |= SUB_AGENT
    stage.server.script(said(ask("find x")), said("Done."), said("Report"), said(r"\boxed{1}"))
    result = await stage.run()
    assert result.log is not None
    document = json.loads(result.log.read_text())
    assert list(document["sub_agent_message_history_sessions"]) == ["agent-browsing_1"]


async def test_a_sub_agent_that_there_is_not_is_an_error_for_the_model(stage: LoopStage):
    stage.settings |= SUB_AGENT
    stage.server.script(said(use("search_and_browse", {"subtask": ""}, server="agent-browsing")), said(r"\boxed{1}"))
    await stage.run()
    assert "'subtask' is missing" in stage.prompts[1][-1]["content"]


async def test_an_attempt_that_ran_out_of_turns_is_discarded_whole(stage: LoopStage):
    stage.settings |= {"max_turns": 1, "discard_retries": 1}
    stage.server.script(said(search("a")), said(search("a")), said(r"\boxed{second}"))
    result = await stage.run()
    assert (result.answer, result.fresh_starts) == ("second", 1)
    assert stage.prompts[1] == stage.prompts[0]
    assert stage.server.chats[0].headers["x-session-id"] != stage.server.chats[1].headers["x-session-id"]


async def test_the_last_attempt_falls_back_to_an_answer_given_on_the_way(stage: LoopStage):
    stage.settings |= {"max_turns": 1, "answer_attempts": 1}
    stage.server.script(said(r"perhaps \boxed{7} " + search("a")), said("no box"))
    result = await stage.run()
    assert (result.answer, result.status) == ("7", "success")


async def test_a_prompt_that_outgrows_the_context_ends_the_work_and_is_answered(stage: LoopStage):
    stage.settings |= {"max_context_tokens": 5000, "sampling": {"max_tokens": 100}}
    stage.tools.answers["google_search"] = "word " * 20_000
    stage.server.script(said(search("a")), said(r"\boxed{short}"))
    result = await stage.run()
    assert (result.stopped, result.answer) == ("context", "short")


class Killed(BaseException):
    """Stands for the end of the process at that very place: nothing catches it."""


async def test_a_task_goes_on_after_its_last_whole_turn(stage: LoopStage, tmp_path: Path):
    stage.tools.answers["google_search"] = "found"
    stage.server.script(said(search("a")), said(search("b")), said(search("c")))
    log = TaskLog.create(tmp_path, "t1", description="Who?")

    async def third_call_kills(arguments):
        if arguments["q"] == "c":
            raise Killed
        return "found"

    stage.tools.answers["google_search"] = third_call_kills
    with pytest.raises(BaseException) as killed:
        await stage.run(log=log)
    assert killed.group_contains(Killed) if isinstance(killed.value, BaseExceptionGroup) else True
    log.close()

    resumed, replay = TaskLog.resume(log.path)
    asked_before = len(stage.server.chats)
    stage.tools = NotingTools()
    stage.server.script(said(search("c")), said(r"\boxed{x}"))
    result = await stage.run(log=resumed, resume_from=replay)
    assert (result.answer, result.turns) == ("x", 4)
    assert stage.prompts[asked_before] == stage.prompts[2]  # the third turn again, with the very same prompt
    assert [arguments["q"] for _, _, arguments in stage.tools.calls] == ["c"]


async def test_a_resumed_task_still_knows_what_was_asked(stage: LoopStage, tmp_path: Path):
    stage.server.script(said(search("a")))
    stage.settings["max_turns"] = 1
    log = TaskLog.create(tmp_path, "t1", description="Who?")
    stage.server.usual = lambda seen: said(r"\boxed{x}")
    await stage.run(log=log)
    log.close()
    resumed, replay = TaskLog.resume(log.path)
    stage.settings["max_turns"] = 9
    replay.main.messages[:] = replay.main.messages[:3]  # question, answer, result
    stage.server.script(said(search("a")), said(r"\boxed{y}"))
    assert (await stage.run(log=resumed, resume_from=replay)).rollbacks == 1


async def test_signals_tell_the_life_of_a_conversation_in_order(stage: LoopStage):
    stage.server.script(said(search("a")), said(r"\boxed{x}"))
    await stage.run()
    kinds = [type(signal).__name__ for signal in stage.hints.signals]
    assert kinds == [
        "AboutToResume",
        "Resumed",
        "TurnFinished",
        "ToolWaitStarted",
        "ToolResultReady",
        "AboutToResume",
        "Resumed",
        "SessionFinal",
    ]
    finished = next(signal for signal in stage.hints.signals if isinstance(signal, signals.TurnFinished))
    assert list(finished.prompt.messages) == stage.prompts[1][:-1]
    assert finished.prompt.endpoint == stage.server.url


async def test_results_that_are_there_are_told_as_the_start_of_the_next_prompt(stage: LoopStage):
    slow = anyio.Event()

    async def one_is_slow(arguments):
        if arguments["q"] == "slow":
            await slow.wait()
        return f"found {arguments['q']}"

    class Releasing(type(stage.hints)):
        def signal(self, signal):
            super().signal(signal)
            if isinstance(signal, signals.ToolResultReady) and signal.left == 1:
                slow.set()

    stage.hints = Releasing()
    stage.tools.answers["google_search"] = one_is_slow
    stage.server.script(said(search("fast") + search("slow")), said(r"\boxed{x}"))
    await stage.run()
    first, last = [signal for signal in stage.hints.signals if isinstance(signal, signals.ToolResultReady)]
    assert first.prompt is not None and first.prompt.messages[-1]["content"] == "found fast"
    assert stage.prompts[1][-1]["content"].startswith("found fast") and last.prompt is None


async def test_a_cut_prompt_is_told_as_a_rewritten_history(stage: LoopStage):
    stage.settings["keep_tool_result"] = 1
    stage.server.script(said(search("a")), said(search("b")), said(r"\boxed{x}"))
    await stage.run()
    (rewritten,) = [signal for signal in stage.hints.signals if isinstance(signal, signals.HistoryRewritten)]
    assert rewritten.kept_messages == 3
    finished = [signal for signal in stage.hints.signals if isinstance(signal, signals.TurnFinished)]
    assert list(finished[1].prompt.messages) == stage.prompts[2][:-1]
