"""`toolhub demo --replay` as a process."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import anyio
import pytest
from real_processes import below
from served_hub import TOOLHUB, environment, write_config
from toolhub_command import Shell

from tests.toolhub_agent.replay.replay_stage import CLOCK, call_clock, config_in, perform, script


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "tmp").mkdir()
    return Shell(tmp_path)


def temporary(shell: Shell) -> dict[str, str]:
    return {"TMPDIR": str(shell.folder / "tmp")}


def record_in(folder: Path, *words: str) -> Path:
    return anyio.run(perform, script(words), config_in(folder), folder)[1]


def test_the_included_task_is_played_with_real_tools_and_says_that_it_is_a_replay(shell: Shell):
    told = shell.json("demo", "--replay", env=temporary(shell))
    assert told["replay"] == "a replay: the model's words are recorded, every tool call below is real"
    assert "written by hand" in told["note"] and told["recorded_turns"] == told["result"]["turns"] == 7
    assert told["result"]["answer"] == "16.8 hours, 10.4 litres" and told["result"]["log"] is None
    tools = {(call["server"], call["tool"]) for call in told["calls"] if call["error"] is None}
    assert {
        ("tool-google-search", "google_search"),
        ("files", "read_file"),
        ("clock", "get_current_time"),
        ("task_planner", "add_todo"),
        ("stateless_python", "python"),
    } == tools - {("task_planner", "list_todos")}
    assert any(call["started_early"] for call in told["calls"])
    assert list((shell.folder / "tmp").iterdir()) == []


def test_ones_own_log_is_played_with_ones_own_tools(shell: Shell):
    log = record_in(shell.folder, f"I look.\n{call_clock()}\n", "\\boxed{noon}")
    write_config(shell.folder, name="hub.yaml", servers=CLOCK)
    done = shell("demo", "--replay-log", str(log))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "a replay: the model's words are recorded, every tool call below is real" in " ".join(lines[:2])
    assert "clock/get_current_time" in done.stdout and "written by hand" not in done.stdout
    assert [line.split("  ")[0] for line in lines if line.startswith("recorded")] == [
        "recorded turn 1",
        "recorded turn 2",
    ]
    assert "noon" in done.stdout and "answer and tokens are recorded" in done.stdout


def test_a_log_without_its_end_is_played_as_far_as_it_goes(shell: Shell):
    log = record_in(shell.folder, call_clock(), "\\boxed{noon}")
    records = log.read_text().splitlines(keepends=True)
    answers = [place for place, line in enumerate(records) if '"role":"assistant"' in line]
    log.write_text("".join(records[: answers[1]]))
    write_config(shell.folder, name="hub.yaml", servers=CLOCK)
    told = shell.json("demo", "--replay-log", str(log), code=1)
    assert len(told["calls"]) == 1 and "the recording ends here" in told["result"]["error"]


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "cannot be replayed"),
        ('{"kind": "other"}\n', "not the log of a task"),
        ('{"kind": "task", "at": 1, "task_id": "t"}\n', "it contains no answer of a model"),
    ],
)
def test_what_is_no_log_is_refused_with_the_way_out(shell: Shell, content: str | None, words: str):
    path = shell.folder / "x.jsonl"
    if content is not None:
        path.write_text(content)
    assert words in shell.refusal("demo", "--replay-log", str(path))


def test_a_log_of_ones_own_needs_a_config(shell: Shell):
    log = record_in(shell.folder, "\\boxed{noon}")
    assert "no config found: " in shell.refusal("demo", "--replay-log", str(log))


def test_ctrl_c_ends_it_with_nothing_left_behind(shell: Shell):
    process = subprocess.Popen(
        [*TOOLHUB, "demo", "--replay"],
        cwd=shell.folder,
        env=environment(temporary(shell) | {"PYTHONUNBUFFERED": "1"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("recorded turn 4"):  # its sandbox made processes
            break
    children = below(process.pid)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in errors, errors
    assert list((shell.folder / "tmp").iterdir()) == []
    assert children and not [child for child in children if child.is_alive]
