"""`toolhub run` with real tools."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest
from llm_stand_in.answers import failed, said
from llm_stand_in.model_server import ModelServer

from tests.toolhub_agent.cli.run_stage import (
    look_at_the_clock_then_answer,
    start_toolhub,
    toolhub,
    use_clock,
    write_config,
)


def rows_in(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_question_is_answered_with_tools_and_everything_is_shown(server: ModelServer, tmp_path: Path):
    config = write_config(tmp_path)
    done = toolhub("run", "What time is it?", "-c", config, "--llm", server.url, "--prefix", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "What time is it?" in done.stdout and "2, 1 tool calls (0.5 per turn)" in done.stdout
    assert "clock/get_current_time" in done.stderr and "TTFT" in done.stderr and "Prompt tokens" in done.stderr
    (document,) = (tmp_path / "logs").glob("task_*.json")
    assert json.loads(document.read_text())["status"] == "success"


def test_an_address_without_a_path_is_taken_for_its_v1(server: ModelServer, tmp_path: Path):
    config = write_config(tmp_path)
    done = toolhub("run", "Who?", "-c", config, "--llm", server.root, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["answer"] == "Who?"


def test_a_task_without_an_answer_is_exit_code_1_and_says_why(server: ModelServer, tmp_path: Path):
    server.usual = lambda seen: failed(401, "bad key")
    done = toolhub("run", "Who?", "-c", write_config(tmp_path), "--llm", server.url, cwd=tmp_path)
    assert done.returncode == 1 and "bad key" in done.stdout


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((), "give one question"),
        (("Who?", "--tasks", "x.jsonl"), "give one question"),
        (("Who?",), "no model server: name one with --llm"),
        (("Who?", "--share-results", "--hub", "unix:///x"), "--share-results is for the command's own hub"),
        (("Who?", "--llm", "ftp://x"), "is not an address like http://"),
        (("--tasks", "absent.jsonl", "--llm", "http://127.0.0.1:9/v1"), "absent.jsonl: no such file"),
    ],
)
def test_what_is_missing_is_said_with_the_way_out(tmp_path: Path, arguments, words):
    done = toolhub("run", *arguments, "-c", write_config(tmp_path), cwd=tmp_path)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


def test_a_dead_model_server_is_told_before_a_server_starts(tmp_path: Path):
    done = toolhub("run", "Who?", "-c", write_config(tmp_path), "--llm", "http://127.0.0.1:9/v1", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("toolhub: no model server answers at http://127.0.0.1:9/v1 (ConnectError")
    assert "toolhub llm-command" in done.stderr and not (tmp_path / "logs").exists()


def test_a_silent_model_server_is_told_and_the_task_goes_on(server: ModelServer, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoints = [f"http://127.0.0.1:{silent.getsockname()[1]}/v1", server.url]
        config = write_config(tmp_path, llm={"endpoints": endpoints})
        done = toolhub("run", "Who?", "-c", config, "--hub", "unix:///no/hub.sock", cwd=tmp_path)
    assert f"{endpoints[0]} did not answer within 5 s" in done.stderr
    assert "no hub answers at unix:///no/hub.sock" in done.stderr and done.returncode == 2


def test_a_sweep_runs_every_task_as_often_as_asked_and_sums_up(server: ModelServer, tmp_path: Path):
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(
        '{"id": "a", "question": "A", "ground_truth": "A"}\n{"id": "b", "question": "B", "answer": "no"}\n'
    )
    done = toolhub(
        "run", "--tasks", tasks, "--runs", "2", "--concurrency", "3", "--out", "sweep",
        "-c", write_config(tmp_path), "--llm", server.url, "--json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]
    assert (summary["tasks"], summary["success"], summary["exact"], summary["tool_calls"]) == (4, 4, 2, 4)
    rows = rows_in(tmp_path / "sweep" / "results.jsonl")
    assert sorted((row["run"], row["id"], row["answer"]) for row in rows) == [
        (1, "a", "A"),
        (1, "b", "B"),
        (2, "a", "A"),
        (2, "b", "B"),
    ]
    assert len(list((tmp_path / "sweep" / "run_2").glob("*.json"))) == 2


def test_attempts_that_share_results_say_so_in_the_report_and_in_their_rows(server: ModelServer, tmp_path: Path):
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"id": "a", "question": "A"}\n{"id": "b", "question": "B"}\n')
    clock = {"builtin": "clock", "share": "hub", "tools": {"policy": {"get_current_time": {"read_only": True}}}}
    command = (
        "run", "--tasks", tasks, "--runs", "2", "--concurrency", "1", "--out", "sweep",
        "-c", write_config(tmp_path, servers={"clock": clock}), "--llm", server.url,
    )  # fmt: skip
    done = toolhub(*command, "--share-results", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3 tool calls got a result of another task or attempt" in done.stdout
    shared = [row["shared_results"] for row in rows_in(tmp_path / "sweep" / "results.jsonl")]
    assert sorted(shared) == [0, 1, 1, 1]
    (told,) = {seen.body["messages"][3]["content"] for seen in server.chats if len(seen.body["messages"]) == 4}
    assert "UTC" in told
    assert "shared" not in toolhub(*command[:-5], "other", *command[-4:], cwd=tmp_path).stdout


def test_the_common_prefix_is_computed_once_before_the_tasks_start(server: ModelServer, tmp_path: Path):
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(f'{{"id": "{n}", "question": "Q{n}"}}\n' for n in range(4)))
    toolhub("run", "--tasks", tasks, "-c", write_config(tmp_path), "--llm", server.url, cwd=tmp_path)
    first, *others = server.chats
    assert first.body["max_tokens"] == 1 and [message["role"] for message in first.body["messages"]] == ["system"]
    assert all(seen.body["messages"][0] == first.body["messages"][0] for seen in others)
    assert all(seen.body.get("max_tokens") != 1 for seen in others)


def test_a_finished_sweep_asks_nothing_again(server: ModelServer, tmp_path: Path):
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"id": "a", "question": "A"}\n')
    command = ("run", "--tasks", tasks, "--out", "s", "-c", write_config(tmp_path), "--llm", server.url)
    toolhub(*command, cwd=tmp_path)
    asked = len(server.chats)
    again = toolhub(*command, cwd=tmp_path)
    assert again.returncode == 0 and len(server.chats) == asked and "1 of them already finished" in again.stderr


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_was_ended_goes_on_in_the_middle_of_its_task(server: ModelServer, tmp_path: Path, ending):
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"id": "a", "question": "A"}\n{"id": "b", "question": "B"}\n')
    command = (
        "run", "--tasks", tasks, "--concurrency", "1", "--out", "s",
        "-c", write_config(tmp_path), "--llm", server.url,
    )  # fmt: skip

    def stop_in_b(seen):
        if len(seen.body["messages"]) == 4 and seen.body["messages"][1]["content"].startswith("B"):
            return said("held", hold=True)
        return look_at_the_clock_then_answer(seen)

    server.usual = stop_in_b
    process = start_toolhub(*command, cwd=tmp_path)
    server.block_until(lambda state: any(is_second_turn_of_b(seen) for seen in state.chats))
    process.send_signal(ending)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if ending is signal.SIGINT else -ending), errors
    server.release()

    server.usual = look_at_the_clock_then_answer
    asked = len(server.chats)
    done = toolhub(*command, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["success"] == 2
    assert "1 tasks continued where they had stopped" in done.stderr
    (only,) = server.chats[asked:]
    assert is_second_turn_of_b(only) and use_clock() == only.body["messages"][2]["content"]


def is_second_turn_of_b(seen) -> bool:
    messages = seen.body["messages"]
    return len(messages) == 4 and messages[1]["content"].startswith("B")
