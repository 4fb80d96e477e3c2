"""Reading the tasks of a sweep, and its results."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from toolhub_agent.sweep import ResultFile, SweepPlan, hub_task_id, read_tasks, row_of, summary
from toolhub_agent.types import Task, TaskResult

from toolhub.errors import ConfigError
from toolhub.task_ids import is_task_value

pytestmark = pytest.mark.quick


def written(folder: Path, *lines: str) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(lines))
    return path


def a_result(**fields) -> TaskResult:
    task = Task("a", "Q", ground_truth=fields.pop("truth", None))
    return TaskResult(**{
        "task": task, "status": "success", "answer": "x", "summary": "", "stopped": "answered", "turns": 1,
        "tool_calls": 0, **fields,
    })  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "1", "question": "Q", "ground_truth": 7, "files": ["a.pdf"]},
        {"task_id": 1, "task_question": "Q", "answer": "7", "file_path": "a.pdf"},
    ],
)
def test_the_field_names_of_benchmark_files_are_understood(tmp_path, fields):
    assert read_tasks(written(tmp_path, "", json.dumps(fields))) == [Task("1", "Q", ("a.pdf",), "7")]


@pytest.mark.parametrize(
    "lines, words",
    [
        (['{"question": "Q"}', "{"], "tasks.jsonl:2: not valid JSON"),
        (["[1]"], ":1: expected an object"),
        (['{"id": "a"}'], ":1: expected a text under one of question"),
        (['{"id": "a", "question": "Q"}'] * 2, ":2: the id 'a' occurs twice"),
        ([""], "the file has no task"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(tmp_path, lines, words):
    with pytest.raises(ConfigError, match="tasks.jsonl") as error:
        read_tasks(written(tmp_path, *lines))
    assert words in str(error.value)


def test_a_line_without_an_id_is_named_by_its_number(tmp_path):
    tasks = read_tasks(written(tmp_path, '{"question": "P"}', "", '{"question": "Q"}'))
    assert [task.id for task in tasks] == ["1", "3"]


@pytest.mark.parametrize("truth, answer, exact", [("Paris.", " paris", True), ("4", "5", False), (None, "x", None)])
def test_answers_are_compared_but_for_case_blanks_and_a_full_stop(truth, answer, exact):
    assert row_of(1, a_result(truth=truth, answer=answer)).exact is exact


def test_results_are_read_back_and_half_a_line_is_run_again(tmp_path):
    results = ResultFile(tmp_path)
    results.add(row_of(1, a_result()))
    results.close()
    with results.path.open("a") as file:
        file.write('{"run": 2, "id": "a"')
    again = ResultFile(tmp_path)
    assert again.done() == {(1, "a")}
    again.add(row_of(2, a_result()))
    again.close()
    last = ResultFile(tmp_path)
    assert last.done() == {(1, "a"), (2, "a")}
    last.close()


def test_a_task_that_the_model_could_not_be_asked_about_runs_again_and_counts_once(tmp_path):
    results = ResultFile(tmp_path)
    results.add(row_of(1, a_result(status="failed", stopped="llm_failed")))
    assert results.done() == set()
    results.add(row_of(1, a_result()))
    assert [row.status for row in results.final()] == ["success"]
    results.close()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write results to .*file"):
        ResultFile(tmp_path / "file")


def test_the_summary_counts_what_is_known():
    rows = [row_of(1, a_result(truth="x")), row_of(1, a_result(truth="y")), row_of(1, a_result(status="failed"))]
    told = summary(rows)
    assert (told["tasks"], told["success"], told["failed"]) == (3, 2, 1)
    assert (told["exact"], told["with_ground_truth"], told["cached_share"]) == (1, 2, None)
    assert summary([])["seconds_median"] is None
    assert asdict(rows[0])["run"] == 1


def test_runs_of_one_question_start_together(tmp_path):
    plan = SweepPlan((Task("a", "A"), Task("b", "B"), Task("c", "A")), tmp_path, runs=2)
    assert [(run, task.id) for run, task in plan.pairs()] == [
        (1, "a"), (1, "c"), (2, "a"), (2, "c"), (1, "b"), (2, "b"),
    ]  # fmt: skip


@pytest.mark.parametrize("odd", ["a b", "../../etc", "gaia/level 1", "问题", "x" * 200, "\ud800", ".hidden"], ids=ascii)
def test_any_id_of_a_data_set_becomes_one_that_a_hub_takes_and_stays_itself(odd):
    made = hub_task_id(odd, 1)
    assert is_task_value(made) and made == hub_task_id(odd, 1)
    assert made not in (hub_task_id(odd, 2), hub_task_id(odd + "x", 1))


def test_an_id_that_a_hub_takes_is_kept():
    assert hub_task_id("gaia-7", 2) == "gaia-7-run2"
