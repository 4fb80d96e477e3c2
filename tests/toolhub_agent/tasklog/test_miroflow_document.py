"""The task log that MiroFlow's tools read, made of the append-only one."""

from __future__ import annotations

import json
import re

import pytest
from toolhub_agent.history import History
from toolhub_agent.tasklog import MAIN, TaskLog, miroflow_document, read_log
from toolhub_agent.tasklog.reader import icon_of
from toolhub_agent.types import ToolCall, ToolOutcome

from tests.toolhub_agent.tasklog.written_log import START, a_history, a_log, a_task, a_turn
from toolhub.miroflow import ToolManager

KEYS = [
    "status",
    "start_time",
    "end_time",
    "task_id",
    "input",
    "ground_truth",
    "final_boxed_answer",
    "final_judge_result",
    "judge_type",
    "eval_details",
    "error",
    "current_main_turn_id",
    "current_sub_agent_turn_id",
    "sub_agent_counter",
    "current_sub_agent_session_id",
    "env_info",
    "log_dir",
    "main_agent_message_history",
    "sub_agent_message_history_sessions",
    "step_logs",
    "trace_data",
]


def document_of(log: TaskLog) -> dict:
    return json.loads(log.write_miroflow().read_text(encoding="utf-8"))


def step_lines(document: dict) -> list[tuple[str, str]]:
    return [(step["step_name"], step["message"]) for step in document["step_logs"]]


def test_it_has_miroflow_s_keys_in_their_order_and_its_file_name(tmp_path):
    path = a_task(tmp_path).write_miroflow()
    assert path == tmp_path / "task_t1_2026-01-02-03-04-05.json"
    assert list(json.loads(path.read_text())) == KEYS


def test_a_finished_task(tmp_path):
    log = a_log(tmp_path, file_name="a.pdf", ground_truth="42", attempt=1, env_info={"model": "m"})
    history, conversation = a_history(log)
    history.append_user("Who?")
    a_turn(history, conversation, 1)
    log._clock = lambda: START + 61
    log.finished("success", "42")
    log.judged("CORRECT", judge_type="exact", details={"score": 1})
    document = document_of(log)
    assert {key: document[key] for key in KEYS[:17]} == {
        "status": "success",
        "start_time": "2026-01-02 03:04:05",
        "end_time": "2026-01-02 03:05:06",
        "task_id": "t1_attempt-1_format-retry-0",
        "input": {"task_description": "Who?", "task_file_name": "a.pdf"},
        "ground_truth": "42",
        "final_boxed_answer": "42",
        "final_judge_result": "CORRECT",
        "judge_type": "exact",
        "eval_details": {"score": 1},
        "error": "",
        "current_main_turn_id": 1,
        "current_sub_agent_turn_id": 0,
        "sub_agent_counter": 0,
        "current_sub_agent_session_id": None,
        "env_info": {"model": "m"},
        "log_dir": str(tmp_path),
    }


def test_a_task_that_runs_and_one_that_failed(tmp_path):
    log = a_task(tmp_path)
    running = document_of(log)
    assert (running["status"], running["end_time"], running["final_boxed_answer"]) == ("running", "", "")
    log.finished("failed", "", error="no model server")
    failed = document_of(log)
    assert (failed["status"], failed["error"]) == ("failed", "no model server")


def test_histories_hold_the_whole_conversation_and_its_system_prompt_apart(tmp_path):
    log = a_task(tmp_path, turns=1)
    session = log.sub_agent_started("agent-browsing", "find it")
    history, conversation = a_history(log, session=session)
    history.append_user("find it")
    a_turn(history, conversation, 1)
    document = document_of(log)
    assert document["main_agent_message_history"] == {
        "system_prompt": "You search.",
        "message_history": [
            {"role": "user", "content": "Who?"},
            {"role": "assistant", "content": "turn 1"},
            {"role": "user", "content": "found"},
        ],
    }
    assert document["sub_agent_message_history_sessions"] == {
        "agent-browsing_1": {"system_prompt": "You search.", "message_history": history.messages()[1:]}
    }
    assert (document["current_sub_agent_session_id"], document["current_sub_agent_turn_id"]) == (session, 1)
    log.sub_agent_ended(session, "agent-browsing")
    document = document_of(log)
    assert (document["current_sub_agent_session_id"], document["sub_agent_counter"]) == (None, 1)


@pytest.mark.parametrize(
    ("level", "name", "icon"),
    [
        ("info", "ToolManager | Tool Call Start", "▶️ "),
        ("info", "ToolManager | Tool Call Success", "✅ "),
        ("error", "ToolManager | Tool Call Failed", "❌ "),
        ("error", "Main Agent | Turn: 1 | Tool Call", "❌ "),
        ("info", "agent-browsing | Turn: 1 | LLM Call", "🤖 "),
        ("info", "Main Agent | Turn: 1 | LLM Call", "👑 "),
        ("error", "Main Agent | Final Answer", "👑 "),
        ("info", "LLM | Retry", "🧠 "),
        ("info", "ToolManager | Initialization", "🔧 "),
        ("info", "Tool Call", "🔧 "),
        ("info", "tool-python | Sandbox", "🐍 "),
        ("info", "tool-google-search", "🔍 "),
        ("info", "playwright", "🌐 "),
        ("info", "anything", ""),
    ],
)
def test_icons_go_by_the_first_part_that_fits(level, name, icon):
    assert icon_of(level, name) == icon


def test_a_turn_s_steps_are_those_that_viewers_look_for(tmp_path):
    lines = step_lines(document_of(a_task(tmp_path, turns=1)))
    assert lines == [
        ("👑 Main Agent", "Start task with id: t1"),
        ("👑 Main Agent", "Task description: Who?"),
        ("👑 Main Agent | Turn: 1 | LLM Call", "completed successfully"),
        ("👑 Main Agent | Turn: 1 | Tool Call", "Executing google_search on web"),
        ("▶️ ToolManager | Tool Call Start", "Connecting to server 'web' to call tool 'google_search'"),
        ("✅ ToolManager | Tool Call Success", "Tool 'google_search' (server: 'web') called successfully."),
        ("👑 Main Agent | Turn: 1 | Tool Call", "Tool google_search completed in 250ms"),
    ]


def test_a_step_s_fields_are_miroflow_s(tmp_path):
    log = a_log(tmp_path)
    log.log_step("warning", "Main Agent | Max Turns Reached", "Reached maximum turns (3)", {"turns": 3})
    assert document_of(log)["step_logs"][-1] == {
        "step_name": "👑 Main Agent | Max Turns Reached",
        "message": "Reached maximum turns (3)",
        "timestamp": "2026-01-02 03:04:05",
        "info_level": "warning",
        "metadata": {"turns": 3},
    }


def test_a_failed_call_and_a_sub_agent_in_steps(tmp_path):
    log = a_log(tmp_path)
    session = log.sub_agent_started("agent-browsing", "s" * 150)
    conversation = log.conversation(session, "You browse.")
    conversation.call_finished(2, ToolOutcome(ToolCall(0, "web", "fetch", {}), "gone", True, 0.1))
    log.sub_agent_ended(session, "agent-browsing")
    assert step_lines(document_of(log))[2:] == [
        ("🤖 agent-browsing | Session Start", f"Starting agent-browsing_1 for subtask: {'s' * 100}..."),
        ("❌ ToolManager | Tool Call Failed", "Error: Failed to call tool 'fetch' (server: 'web'): gone"),
        ("❌ agent-browsing | Turn: 2 | Tool Call", "Tool fetch failed to execute: gone"),
        ("🤖 agent-browsing | Session End", "Ending agent-browsing_1"),
    ]


def test_a_tool_manager_s_own_steps_are_not_doubled(tmp_path):
    log = a_task(tmp_path, turns=1)
    ToolManager([]).set_task_log(log)
    alone = [name for name, _ in step_lines(document_of(log))]
    assert "🔧 ToolManager | Initialization" in alone
    assert alone.count("▶️ ToolManager | Tool Call Start") == 1
    log.log_step("info", "ToolManager | Tool Call Start", "its own", {"arguments": {}})
    both = step_lines(document_of(log))
    assert [message for name, message in both if "Tool Call Start" in name] == ["its own"]
    assert ("👑 Main Agent | Turn: 1 | Tool Call", "Tool google_search completed in 250ms") in both


def test_readers_find_the_old_document_or_the_new_one_and_no_draft(tmp_path):
    log = a_task(tmp_path)
    first = log.write_miroflow().read_bytes()
    (tmp_path / ".task_t1_2026-01-02-03-04-05.json.1").write_text("a draft of another process")
    log.finished("success", "42")
    assert log.write_miroflow().read_bytes() != first
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".1", ".json", ".jsonl"]


def test_the_document_of_a_log_that_was_cut_is_what_is_left(tmp_path):
    log = a_task(tmp_path, turns=2)
    log.path.write_bytes(log.path.read_bytes()[:-5])
    document = miroflow_document(read_log(log.path))
    assert (document["status"], document["current_main_turn_id"]) == ("running", 2)
    assert len(document["main_agent_message_history"]["message_history"]) == 4


def test_a_call_in_the_history_reads_as_xml_does_in_miroflow_s_visualizer(tmp_path):
    """It looks for calls in the text of answers with this pattern (visualize-trace)."""
    log = a_log(tmp_path)
    history = History("s", journal=log.conversation(MAIN, "s"))
    history.append_user("Who?")
    call = '<server_name>web</server_name>\n<tool_name>fetch</tool_name>\n<arguments>\n{"a": "ü"}\n</arguments>'
    a_call = f"I look.\n<use_mcp_tool>\n{call}\n</use_mcp_tool>"
    log.continued(MAIN).appended([{"role": "assistant", "content": a_call}])
    (_, answer) = document_of(log)["main_agent_message_history"]["message_history"]
    found = re.search(r"<use_mcp_tool>.*?<arguments>\s*(.*?)\s*</arguments>", answer["content"], re.DOTALL)
    assert json.loads(found[1]) == {"a": "ü"}
