"""Real trouble: a process that is killed while it writes, and a disk that is full."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from toolhub_agent.history import History
from toolhub_agent.tasklog import MAIN, TaskLog, log, read_log

from tests.toolhub_agent.tasklog.written_log import a_turn

PROGRAM = Path(__file__).with_name("endless_task.py")
# In the middle of the third turn's results, which are 70 kB.
THIRD_TURN = 180_000
HANGS_S = 60


@contextmanager
def endless_task(folder: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(PROGRAM), str(folder), *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def goes_on(path: Path) -> History:
    """Resume a log as the loop does, and add a turn."""
    log, replay = TaskLog.resume(path)
    conversation = log.continued(MAIN)
    history = History(replay.main.system, journal=conversation, restored=replay.main.messages)
    if replay.main.is_mid_turn:
        history.pop_turn()
    a_turn(history, conversation, history.turns + 1)
    log.close()
    return history


@pytest.mark.parametrize("turns", [1, 2, 7, 20])
def test_a_task_killed_at_any_moment_goes_on_from_its_last_whole_turn(tmp_path, turns):
    with endless_task(tmp_path) as process:
        path = Path(said(process))
        for number in range(1, turns + 1):
            assert said(process) == str(number)
        process.kill()  # it is writing the next turn
        process.wait(HANGS_S)
    main = read_log(path).main
    assert main.turns >= turns
    history = goes_on(path)
    after = read_log(path)
    assert after.is_whole
    assert after.main.messages == history.messages()[1:]
    assert after.main.turns == len(after.main.calls) == history.turns > turns


def test_a_record_half_written_when_the_process_was_killed_is_left_out(tmp_path):
    with endless_task(tmp_path, THIRD_TURN) as process:
        path = Path(said(process))
        while said(process) != "full":
            pass
        process.kill()
        process.wait(HANGS_S)
    assert path.stat().st_size == THIRD_TURN
    assert not path.read_bytes().endswith(b"\n")
    replay = read_log(path)
    assert (replay.is_whole, replay.main.turns, replay.main.is_mid_turn) == (False, 3, True)
    assert [call.arguments["q"] for call in replay.main.started] == ["query 3"]
    history = goes_on(path)
    after = read_log(path)
    assert (after.is_whole, after.main.turns) == (True, 3)
    assert after.main.messages == history.messages()[1:]


def test_on_a_full_disk_the_task_goes_on_with_one_warning_and_nothing_is_missing_once_there_is_room(tmp_path):
    with endless_task(tmp_path, THIRD_TURN) as process:
        path = Path(said(process))
        lines = []
        while (line := said(process)) != "full":
            lines.append(line)
        assert [line for line in lines if line.isdigit()] == ["1", "2"]
        warnings = [line for line in lines if not line.isdigit()]
        assert [line.split()[:2] for line in warnings] == [["WARNING", "log"], ["WARNING", "task"]]
        assert "the task goes on, but may not be resumable" in warnings[0]
        assert "cannot be written" in warnings[1]  # the document, asked for meanwhile
        assert [file.suffix for file in tmp_path.iterdir()] == [".jsonl"]
        process.stdin.write("room\n")
        process.stdin.flush()
        assert said(process) == "4"
    replay = read_log(path)
    assert (replay.is_whole, replay.main.turns, replay.main.is_mid_turn) == (True, 4, False)


def test_a_disk_that_stays_full_costs_a_bounded_amount_of_memory(monkeypatch, caplog):
    monkeypatch.setattr(log, "BACKLOG_BYTES", 1000)
    lines = log.LineWriter(Path("/dev/full"), os.open("/dev/full", os.O_WRONLY))
    for _ in range(100):
        lines.append(b"x" * 99 + b"\n")
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "the log ends here" in caplog.messages[1]
    assert repr(lines) == "<LineWriter /dev/full closed>"
