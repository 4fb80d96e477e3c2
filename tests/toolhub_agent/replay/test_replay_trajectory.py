"""Reading what a model said out of a task's log."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from toolhub_agent.history import History
from toolhub_agent.replay.recording import RecordedAnswer, Trajectory
from toolhub_agent.tasklog import MAIN, LogUnreadable, TaskLog
from toolhub_agent.types import Completion, ToolCall, ToolOutcome, Usage

pytestmark = pytest.mark.quick


class Writer:
    """Writes a log as the loop does: what an answer cost, then the answer, then its results."""

    def __init__(self, folder: Path) -> None:
        self.log = TaskLog.create(folder, "t", description="Who?")
        self.begin(MAIN)

    def begin(self, session: str, protocol: Literal["xml", "native"] = "xml", opening: str = "Who?") -> None:
        self.journal = self.log.conversation(session, "system")
        self.history = History("system", protocol=protocol, journal=self.journal)
        self.history.append_user(opening)

    def answer(self, text: str, *, stands: bool = True, **fields) -> None:
        completion = Completion(text, usage=Usage(9, len(text), 4), ttft=0.25, seconds=2.0, **fields)
        self.journal.answered(self.history.turns + 1, completion)
        if stands:
            self.history.append_assistant(completion)

    def result(self, call_id: str | None = None) -> None:
        self.history.append_results([ToolOutcome(ToolCall(0, "s", "t", {}, id=call_id), "result")])

    def read(self) -> Trajectory:
        self.log.close()
        return Trajectory.read(self.log.path)


def expected(text: str, **fields) -> RecordedAnswer:
    return RecordedAnswer(text, usage=Usage(9, len(text), 4), ttft=0.25, seconds=2.0, **fields)


def test_answers_come_with_what_they_cost_and_thought(tmp_path: Path):
    writer = Writer(tmp_path)
    writer.answer("one", reasoning="hm")
    writer.result()
    writer.answer("second")
    writer.log.finished("success", "x")
    trajectory = writer.read()
    assert (trajectory.task_id, trajectory.question, trajectory.protocol) == ("t", "Who?", "xml")
    (main,) = trajectory.conversations
    assert main.answers == (expected("one", reasoning="hm"), expected("second"))
    assert main.opening == "Who?" and trajectory.turns == 2 and trajectory.is_finished


def test_turns_that_were_taken_back_are_left_out_with_their_cost(tmp_path: Path):
    writer = Writer(tmp_path)
    writer.answer("never appended", stands=False)
    writer.answer("popped again")
    writer.history.pop_turn()
    writer.answer("stands")
    (main,) = writer.read().conversations
    assert main.answers == (expected("stands"),)


def test_a_fresh_start_leaves_only_the_last_attempt(tmp_path: Path):
    writer = Writer(tmp_path)
    writer.answer("thrown away")
    writer.log.attempt_ended(1, "no answer")
    writer.begin(MAIN)
    writer.answer("kept")
    (main,) = writer.read().conversations
    assert [answer.text for answer in main.answers] == ["kept"]


def test_native_calls_tell_the_protocol(tmp_path: Path):
    writer = Writer(tmp_path)
    writer.begin(MAIN, "native")
    call = {"id": "c1", "type": "function", "function": {"name": "s-t", "arguments": "{}"}}
    writer.answer("", tool_calls=(call,))
    writer.result("c1")
    trajectory = writer.read()
    assert trajectory.protocol == "native" and trajectory.conversations[0].answers[0].tool_calls == (call,)


def test_a_log_that_breaks_off_in_a_line_is_read_up_to_there(tmp_path: Path):
    writer = Writer(tmp_path)
    writer.answer("whole")
    writer.log.close()
    with writer.log.path.open("a") as file:
        file.write('{"kind": "messages", "sess')
    trajectory = Trajectory.read(writer.log.path)
    assert trajectory.turns == 1 and not trajectory.is_finished


def test_sub_agents_have_conversations_of_their_own(tmp_path: Path):
    writer = Writer(tmp_path)
    writer.answer("main's")
    writer.begin("agent-browse_1", opening="find it")
    writer.answer("sub's")
    trajectory = writer.read()
    assert [(one.name, one.opening) for one in trajectory.conversations] == [
        (MAIN, "Who?"),
        ("agent-browse_1", "find it"),
    ]
    assert trajectory.turns == 1


def test_another_file_is_refused(tmp_path: Path):
    (tmp_path / "x.jsonl").write_text('{"kind": "other"}\n')
    with pytest.raises(LogUnreadable, match="not the log of a task"):
        Trajectory.read(tmp_path / "x.jsonl")
