"""Whose turn it is: shares follow weights, whatever anybody has queued, and nothing is lost or served twice."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolhub.limits.fair_queue import FairQueue, Ticket
from toolhub.model import FairShareKey


def share_key(run: str, task: str, weight: float = 1.0, run_weight: float = 1.0) -> FairShareKey:
    return FairShareKey(f"{run}{task}", run, weight, run_weight)


def drained(queue: FairQueue[str]) -> list[str]:
    return [queue.pop() for _ in range(len(queue))]


def filled(**lengths: int) -> FairQueue[str]:
    """A queue with that many items per task; a task's run is the first letter of its name."""
    queue: FairQueue[str] = FairQueue()
    for name, length in lengths.items():
        for _ in range(length):
            queue.push(name, share_key(name[0], name[1:]))
    return queue


def test_one_task_is_served_in_its_own_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in "abc":
        queue.push(item, share_key("r", "1"))
    assert drained(queue) == ["a", "b", "c"]


def test_a_burst_of_one_task_does_not_come_before_another_tasks_only_item() -> None:
    assert drained(filled(r1=1000, r2=1)).index("r2") <= 1


def test_tasks_of_one_run_take_turns() -> None:
    assert drained(filled(r1=3, r2=3)) == ["r1", "r2"] * 3


def test_a_run_with_many_tasks_gets_no_more_than_one_with_few() -> None:
    many = {f"a{number}": 10 for number in range(9)}
    first = Counter(name[0] for name in drained(filled(**many, b1=50))[:60])
    assert first == {"a": 30, "b": 30}


def test_a_weight_multiplies_the_share_of_a_task_and_of_a_run() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(200):
        queue.push("heavy", share_key("a", "1", weight=3))
        queue.push("light", share_key("a", "2"))
        queue.push("other", share_key("b", "1", run_weight=0.5))
    first = Counter(drained(queue)[:180])
    assert first == {"heavy": 90, "light": 30, "other": 60}


def test_an_empty_queue_has_nothing_to_give() -> None:
    with pytest.raises(IndexError, match="empty"):
        FairQueue[str]().pop()


def test_what_was_taken_out_is_not_served_and_cannot_be_taken_out_again() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("stays", share_key("r", "1"))
    ticket = queue.push("goes", share_key("r", "1"))
    assert (queue.remove(ticket), queue.remove(ticket)) == (True, False)
    assert drained(queue) == ["stays"]
    assert queue.waiting(share_key("r", "1")) == 0


def test_a_ticket_of_what_was_served_takes_out_nothing() -> None:
    queue: FairQueue[str] = FairQueue()
    ticket = queue.push("served", share_key("r", "1"))
    queue.pop()
    queue.push("next", share_key("r", "1"))
    assert not queue.remove(ticket)
    assert drained(queue) == ["next"]


def test_room_is_made_by_the_newest_item_of_whoever_queued_most() -> None:
    queue = filled(a1=5, a2=2, b1=3)
    assert queue.shed_longest(share_key("b", "9")) == "a1"
    assert Counter(queue) == {"a1": 4, "a2": 2, "b1": 3}


def test_whoever_queued_most_pushes_nobody_out() -> None:
    assert filled(a1=5, a2=4).shed_longest(share_key("a", "1")) is None
    assert filled(a1=5, a2=4).shed_longest(share_key("a", "2")) is None
    assert filled(a1=5, a2=3).shed_longest(share_key("a", "2")) == "a1"
    assert FairQueue[str]().shed_longest(share_key("a", "1")) is None


weights = st.sampled_from([0.01, 0.3, 1.0, 2.5, 100.0])
crowds = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.sampled_from("12345")),
    st.tuples(st.integers(1, 40), weights),
    min_size=1,
)


@given(crowds, st.dictionaries(st.sampled_from("abc"), weights))
def test_everything_is_served_once_and_each_task_in_its_order(crowd, run_weights) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for (run, task), (length, weight) in crowd.items():
        for number in range(length):
            queue.push((run + task, number), share_key(run, task, weight, run_weights.get(run, 1.0)))
    served = [queue.pop() for _ in range(len(queue))]
    assert len(queue) == 0
    for (run, task), (length, _) in crowd.items():
        assert [number for name, number in served if name == run + task] == list(range(length))


@given(crowds, st.data())
def test_while_two_tasks_of_a_run_both_wait_their_shares_follow_their_weights(crowd, data) -> None:
    """The bound of deficit round robin: nobody is ahead of its share by more than one turn's worth of its weight."""
    queue: FairQueue[tuple[str, str]] = FairQueue()
    for (run, task), (length, weight) in crowd.items():
        for _ in range(length):
            queue.push((run, task), share_key(run, task, weight))
    left = {name: length for name, (length, _) in crowd.items()}
    run = data.draw(st.sampled_from(sorted({run for run, _ in crowd})))
    mates = [name for name in crowd if name[0] == run]
    served: Counter[tuple[str, str]] = Counter()
    while queue and all(left[mate] for mate in mates):
        name = queue.pop()
        left[name] -= 1
        served[name] += 1
    for one in mates:
        for other in mates:
            turns = (served[name] / crowd[name][1] for name in (one, other))
            slack = 2 + 1 / crowd[one][1] + 1 / crowd[other][1]
            first, second = turns
            assert abs(first - second) <= slack


@given(crowds, st.sampled_from("abc"), st.sampled_from("123456789"))
def test_the_estimate_of_what_comes_before_is_right_to_a_turn_for_equal_weights(crowd, run, task) -> None:
    queue: FairQueue[tuple[str, str]] = FairQueue()
    for (other_run, other), (length, _) in crowd.items():
        for _ in range(length):
            queue.push((other_run, other), share_key(other_run, other))
    newcomer = share_key(run, task)
    expected = queue.ahead_of(newcomer)
    queue.push(("new", ""), newcomer)
    position = [queue.pop() for _ in range(len(queue))].index(("new", ""))
    # Whether it is the first or the last of the round that is going on, nobody can know.
    assert abs(position - expected) <= len(crowd) + 3


@given(st.lists(st.tuples(st.sampled_from(["push", "pop", "remove", "shed_longest"]), st.sampled_from("abc"),
                          st.sampled_from("12"), st.integers(0, 99)), max_size=120))  # fmt: skip
def test_the_counts_hold_whatever_is_done_in_whatever_order(steps) -> None:
    queue: FairQueue[int] = FairQueue()
    inside: dict[int, Ticket] = {}
    for number, (step, run, task, choice) in enumerate(steps):
        if step == "push":
            inside[number] = queue.push(number, share_key(run, task))
        elif step == "pop" and inside:
            del inside[queue.pop()]
        elif step == "remove" and inside:
            chosen = sorted(inside)[choice % len(inside)]
            assert queue.remove(inside.pop(chosen))
        elif step == "shed_longest" and (victim := queue.shed_longest(share_key(run, task))) is not None:
            del inside[victim]
        assert sorted(queue) == sorted(inside)
        assert len(queue) == len(inside)
