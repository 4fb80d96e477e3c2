"""A recording in the model's place, with the real loop and a real hub."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from toolhub_agent.errors import LlmRefused
from toolhub_agent.events import NoCallbacks
from toolhub_agent.llm.client import LlmRequest
from toolhub_agent.replay import player
from toolhub_agent.replay.recording import PlaybackPace, RecordedAnswer, ReplayLlm, Trajectory
from toolhub_agent.tasklog import MAIN, read_log
from toolhub_agent.types import Completion, Delta, Usage

from tests.toolhub_agent.replay.replay_stage import AT_ONCE, call, call_clock, config_in, perform, say, script
from toolhub.config import SandboxSettings

pytestmark = pytest.mark.anyio
FUNCTION = {"name": "clock-get_current_time", "arguments": '{"timezone": "UTC"}'}
NATIVE = {"id": "c1", "type": "function", "function": FUNCTION}


def prompt(*roles: str, session: str = "t-1") -> LlmRequest:
    return LlmRequest(session, [{"role": role, "content": role} for role in ("system", *roles)])


async def asked(llm: ReplayLlm, request: LlmRequest) -> tuple[list[Delta], Completion]:
    async with llm.stream(request) as stream:
        deltas = [delta async for delta in stream]
    return deltas, stream.completion


async def test_an_answer_comes_in_small_pieces_that_make_it_whole():
    answer = RecordedAnswer("word " * 20, "thought " * 9, (NATIVE,), Usage(5, 6, 3), ttft=0.125, seconds=9.0)
    deltas, completion = await asked(ReplayLlm(script([answer]), AT_ONCE), prompt("user"))
    assert max(len(delta.text) for delta in deltas) <= 8 and len(deltas) > 20
    assert "".join(delta.text for delta in deltas) == answer.text == completion.text
    assert "".join(delta.reasoning for delta in deltas) == answer.reasoning == completion.reasoning
    pieces = [piece["function"]["arguments"] for delta in deltas for piece in delta.tool_calls]
    assert "".join(pieces) == FUNCTION["arguments"] and completion.tool_calls == (NATIVE,)
    assert (completion.ttft, completion.seconds, completion.usage) == (0.125, 9.0, Usage(5, 6, 3))


async def test_recorded_minutes_take_no_longer_than_the_pace():
    answer = RecordedAnswer("word " * 20, ttft=600.0, seconds=6000.0)
    with anyio.fail_after(30):
        _, completion = await asked(ReplayLlm(script([answer]), PlaybackPace(0.01, 0.01)), prompt("user"))
    assert completion.seconds == 6000.0


async def test_the_prompt_decides_which_answer_it_is_so_a_repeated_turn_is_the_same():
    llm = ReplayLlm(script(["first", "second"]), AT_ONCE)
    again = [(await asked(llm, prompt("user")))[1].text for _ in range(2)]
    assert again == ["first", "first"]
    assert (await asked(llm, prompt("user", "assistant", "user")))[1].text == "second"


async def test_what_was_not_recorded_is_refused_in_words():
    llm = ReplayLlm(script(["only"], is_finished=False), AT_ONCE)
    with pytest.raises(LlmRefused, match="the recording ends here: it has no answer number 2 of the agent; .* its end"):
        await asked(llm, prompt("user", "assistant", "user"))
    assert len(llm.ended) == 1


async def test_a_log_is_played_again_with_the_same_words_and_calls(tmp_path: Path):
    config = config_in(tmp_path)
    first, log = await perform(script([f"I look.\n{call_clock()}", "\\boxed{noon}"]), config, tmp_path)
    second, again = await perform(Trajectory.read(log), config, tmp_path)
    assert (first.status, second.status, second.answer) == ("success", "success", "noon")
    assert (second.turns, second.tool_calls, second.usage) == (2, 1, first.usage)
    assert words_of(again) == words_of(log)
    assert any("datetime" in text for text in results_in(again))


async def test_native_calls_are_made_for_real(tmp_path: Path):
    trajectory = script([say("", tool_calls=(NATIVE,)), "\\boxed{noon}"], protocol="native")
    result, log = await perform(trajectory, config_in(tmp_path, protocol="xml"), tmp_path)
    assert result.status == "success" and result.tool_calls == 1
    (answer,) = [message for message in read_log(log).main.messages if message["role"] == "tool"]
    assert "datetime" in answer["content"]


async def test_a_call_that_fails_today_does_not_stop_the_replay(tmp_path: Path):
    script_ = script([call("gone", "search", "{}"), call_clock("Nowhere/Land"), "\\boxed{noon}"])
    result, log = await perform(script_, config_in(tmp_path), tmp_path)
    assert (result.answer, result.turns, result.rollbacks) == ("noon", 3, 0)
    assert any("unknown time zone" in text for text in results_in(log))


async def test_a_recording_without_its_end_says_so_in_the_result(tmp_path: Path):
    result, _ = await perform(script([call_clock()], is_finished=False), config_in(tmp_path), tmp_path)
    assert result.status == "failed"
    assert result.error is not None and "has no answer number 2 of the agent" in result.error


async def test_sub_agents_are_told_apart_in_whatever_order_they_start(tmp_path: Path):
    config = config_in(tmp_path, sub_agents={"browse": {"servers": ["clock"]}})
    delegate = [
        call("agent-browse", "search_and_browse", f'{{"subtask": "{task}"}}') for task in ("the east", "the west")
    ]
    # The log has them the other way round than they start now.
    others = {
        "agent-browse_1": ("the west", ["west says", "report of the west"]),
        "agent-browse_2": ("the east", [call_clock("Asia/Tokyo"), "east says", "report of the east"]),
    }
    result, log = await perform(script(["\n".join(delegate), "\\boxed{both}"], others), config, tmp_path)
    assert result.answer == "both"
    (reports,) = [text for text in results_in(log) if "report of" in text]
    assert reports.index("report of the east") < reports.index("report of the west")


async def test_the_included_task_goes_on_where_no_sandbox_can_be_made(tmp_path: Path):
    config = player.demo_config(tmp_path).model_copy(
        update={"sandbox": SandboxSettings(python=str(tmp_path / "absent"))}
    )
    watched = Watch()
    result, _ = await perform(Trajectory.read(player.DEMO_LOG), config, tmp_path, viewer=watched)
    assert result.status == "success" and result.turns == 7
    told = [outcome.text for outcome in watched.outcomes if outcome.call.server == "stateless_python"]
    assert len(told) == 2 and not any("burning" in text for text in told), told


class Watch(NoCallbacks):
    def __init__(self) -> None:
        self.outcomes = []

    def called(self, agent, outcome) -> None:
        self.outcomes.append(outcome)


def words_of(log: Path) -> list[str]:
    return [answer.text for one in Trajectory.read(log).conversations for answer in one.answers]


def results_in(log: Path) -> list[str]:
    return [str(message["content"]) for message in read_log(log).conversations[MAIN].messages[1:]]
