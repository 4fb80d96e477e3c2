"""The append-only log: what it costs, who may read it, what is never in it."""

from __future__ import annotations

import json
import logging
import stat

import pytest
from toolhub_agent.tasklog import MAIN, TaskLog, read_log
from toolhub_agent.types import ToolCall

from tests.toolhub_agent.tasklog.written_log import START, a_history, a_log, a_task, a_turn

pytestmark = pytest.mark.quick


def test_every_record_is_on_disk_when_its_method_returns(tmp_path):
    log = a_log(tmp_path)
    for count in range(2, 6):
        log.log_step("info", "Main Agent", "step")
        assert len(log.path.read_bytes().splitlines()) == count


def test_a_turn_of_600_costs_what_the_first_one_did(tmp_path):
    log = a_log(tmp_path)
    history, conversation = a_history(log)
    costs = []
    for number in range(1001, 1601):  # four digits all the way, so that equal turns have equal sizes
        before = log.path.stat().st_size
        a_turn(history, conversation, number, result="x" * 2000)
        costs.append(log.path.stat().st_size - before)
    assert max(costs) - min(costs) <= 8  # the digits of token counts


def test_only_its_owner_may_read_it_and_the_document(tmp_path):
    log = a_task(tmp_path / "logs")
    document = log.write_miroflow()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (log.path, document)] == [0o600, 0o600]
    assert stat.S_IMODE((tmp_path / "logs").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({}, "task_t1_2026-01-02-03-04-05.jsonl"),
        ({"attempt": 2}, "task_t1_attempt-2_format-retry-0_2026-01-02-03-04-05.jsonl"),
        ({"attempt": 1}, "task_t1_attempt-1_format-retry-0_2026-01-02-03-04-05.jsonl"),
    ],
)
def test_the_file_is_called_as_miroflow_s_runner_expects(tmp_path, names, expected):
    assert a_log(tmp_path, **names).path.name == expected


@pytest.mark.parametrize("task_id", ["../../etc/passwd", "a/b", "a\nb", "ü" * 300])
def test_a_task_s_id_cannot_leave_the_folder(tmp_path, task_id):
    log = a_log(tmp_path, task_id)
    assert log.path.parent == tmp_path
    assert log.path.exists()
    assert "\n" not in log.path.name
    assert read_log(log.path).task_id == task_id


def test_two_tasks_of_one_id_and_second_have_two_files(tmp_path):
    first, second = a_log(tmp_path), a_log(tmp_path)
    assert first.path != second.path
    assert read_log(second.path).task_id == "t1"


def test_a_secret_is_in_neither_file_however_it_is_quoted(tmp_path):
    secret = 'sk-"quoted"\\-0123'
    log = a_log(tmp_path, description=f"use {secret}", env_info={"key": secret}, secrets=[secret])
    history, conversation = a_history(log)
    history.append_user(f"the key is {secret}")
    arguments = {"headers": {secret: [secret]}, "raw": json.dumps({"key": secret})}
    conversation.call_started(1, ToolCall(0, "web", "fetch", arguments))
    log.log_step("info", "step", secret, {"nested": {"key": json.dumps(json.dumps(secret))}})
    written = log.path.read_text() + log.write_miroflow().read_text()
    assert "0123" not in written
    assert "quoted" not in written
    assert written.count("***") >= 14


def test_what_is_no_json_costs_its_record_and_not_the_task(tmp_path, caplog):
    log = a_log(tmp_path)
    endless: list = []
    endless.append(endless)
    log.log_step("info", "odd", "step", {"endless": endless})
    log.log_step("info", "even", "step", {("a", "b"): 1})  # type: ignore[dict-item]  # a key that JSON does not know
    log.log_step("info", "path", "step", {"path": tmp_path})
    assert [step.name for step in read_log(log.path).steps if not step.is_derived] == ["path"]
    assert len(caplog.records) == 2


def test_half_a_surrogate_pair_survives_the_log(tmp_path):
    log = a_log(tmp_path)
    log.log_step("info", "odd", "a\ud83d")
    assert read_log(log.path).steps[-1].message == "a\ud83d"
    assert log.write_miroflow() is not None


def test_without_a_folder_the_task_goes_on_and_is_told_once(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    log = a_task(tmp_path / "file" / "logs")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "cannot be resumed" in caplog.text
    assert log.write_miroflow() is None
    log.close()


def test_another_process_at_the_same_log_is_refused(tmp_path):
    log = a_task(tmp_path)
    with pytest.raises(BlockingIOError):
        TaskLog.resume(log.path)
    log.close()
    resumed, _ = TaskLog.resume(log.path)
    resumed.close()


def test_a_resumed_log_is_continued_in_place(tmp_path):
    log = a_task(tmp_path, turns=1)
    before = log.path.read_bytes()
    log.close()
    resumed, replay = TaskLog.resume(log.path, clock=lambda: START + 9)
    resumed.continued(MAIN).appended([{"role": "assistant", "content": "more"}])
    assert log.path.read_bytes().startswith(before)
    assert [message["content"] for message in replay.main.messages] == ["Who?", "turn 1", "found"]
    assert [message["content"] for message in read_log(log.path).main.messages][-1] == "more"


def test_sub_agents_of_a_resumed_log_are_numbered_on(tmp_path):
    log = a_log(tmp_path)
    assert log.sub_agent_started("agent-browsing", "find it") == "agent-browsing_1"
    log.close()
    resumed, _ = TaskLog.resume(log.path)
    assert resumed.sub_agent_started("agent-browsing", "find it") == "agent-browsing_2"
