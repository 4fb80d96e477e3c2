"""A task's time is split into what was waited for, nothing twice and nothing lost."""

from __future__ import annotations

import pytest

from benchmarks.task.times import CallTimes, TaskTimes, TurnTimes, overlap


def turn(begin: float, first: float, end: float) -> TurnTimes:
    return TurnTimes(begin, first, end, prompt=100, cached=0, written=10)


def parts(times: TaskTimes) -> dict[str, float]:
    return {"first": times.first_s, "decode": times.decode_s, "tools": times.tools_s, "start": times.start_s}


def test_a_call_that_follows_the_model_is_start_up_and_then_the_tool() -> None:
    times = TaskTimes([turn(1, 2, 4), turn(10, 11, 12)], [CallTimes(4, 9.5, 3, "search")])
    # Before the first request 1 s, before the tool 2.5 s, after it 0.5 s.
    assert parts(times) == pytest.approx({"first": 2, "decode": 3, "tools": 3, "start": 4})
    assert times.wall_s == 12
    assert sum(parts(times).values()) == pytest.approx(times.wall_s)


def test_a_call_beside_the_model_costs_only_what_is_left_of_it() -> None:
    times = TaskTimes([turn(0, 1, 4), turn(5, 6, 7)], [CallTimes(2, 5, 3, "search")])
    assert parts(times) == pytest.approx({"first": 2, "decode": 4, "tools": 1, "start": 0})


def test_calls_at_once_are_waited_for_once() -> None:
    calls = [CallTimes(2, 6, 4, "search"), CallTimes(2, 5, 3, "scrape")]
    assert TaskTimes([turn(0, 1, 2), turn(6, 7, 8)], calls).tools_s == 4


def test_calls_one_after_another_are_all_waited_for() -> None:
    calls = [CallTimes(2, 6, 3, "search"), CallTimes(6, 11, 4, "scrape")]
    assert parts(TaskTimes([turn(0, 1, 2), turn(11, 12, 13)], calls)) == pytest.approx(
        {"first": 2, "decode": 2, "tools": 7, "start": 2}
    )


def test_times_survive_json() -> None:
    times = TaskTimes([turn(1, 2, 4)], [CallTimes(4, 10, 3, "search")])
    assert TaskTimes.of(times.to_json()) == times


@pytest.mark.parametrize(
    ("intervals", "covered"),
    [([], 0), ([(0, 1)], 0), ([(1, 3)], 1), ([(2, 9)], 3), ([(2, 3), (2.5, 4), (4, 4.5)], 2.5), ([(3, 4), (0, 9)], 3)],
)
def test_what_overlaps_is_counted_once(intervals: list[tuple[float, float]], covered: float) -> None:
    assert overlap((2, 5), intervals) == covered
