"""The choice of an endpoint: affinity, spill, failures. The clock is the test's."""

from __future__ import annotations

import pytest
from toolhub_agent.llm import endpoint_pool as module
from toolhub_agent.llm.endpoint_pool import LONGEST_BACKOFF_S, EndpointRouter, rendezvous_order

URLS = ("http://a/v1", "http://b/v1", "http://c/v1")


class RouterStage:
    def __init__(self) -> None:
        self.time = 0.0
        self.loads = dict.fromkeys(URLS, 0)
        self.endpoints = EndpointRouter(
            URLS, load=lambda url: self.loads[url], load_imbalance_threshold=16, now=lambda: self.time
        )
        self.order = rendezvous_order("task", URLS)

    def choose(self) -> int:
        """The place of the choice in the conversation's own order."""
        return self.order.index(self.endpoints.choose("task"))


@pytest.fixture
def stage() -> RouterStage:
    return RouterStage()


def test_a_conversation_stays_at_its_home_up_to_the_spill_load(stage):
    stage.loads[stage.order[0]] = 15
    assert stage.choose() == 0


def test_a_conversation_leaves_a_much_busier_home_and_returns_only_when_that_has_calmed_down(stage):
    stage.loads[stage.order[0]] = 16
    assert stage.choose() == 1
    stage.loads[stage.order[0]] = 9  # no reason to leave, but none to give up the new prefix either
    assert stage.choose() == 1
    stage.loads[stage.order[0]] = 8
    assert stage.choose() == 0


def test_a_conversation_spills_past_a_busy_neighbour(stage):
    stage.loads |= {stage.order[0]: 40, stage.order[1]: 30}
    assert stage.choose() == 2


def test_asking_where_a_conversation_would_go_moves_nothing(stage):
    stage.loads[stage.order[0]] = 16
    assert stage.endpoints.of("task") == stage.order[1]
    stage.loads[stage.order[0]] = 9
    assert stage.endpoints.of("task") == stage.order[0]


def test_a_failing_endpoint_goes_to_the_back_and_its_conversations_return_when_it_is_back(stage):
    stage.endpoints.failed(stage.order[0])
    assert stage.choose() == 1
    stage.time = 1.1
    assert stage.choose() == 0


def test_an_endpoint_that_keeps_failing_stays_away_longer_until_it_works(stage):
    first = stage.order[0]
    stage.endpoints.failed(first)
    stage.endpoints.failed(first)
    stage.time = 1.5
    assert not stage.endpoints.is_healthy(first)
    stage.endpoints.worked(first)
    assert stage.endpoints.is_healthy(first)
    stage.endpoints.failed(first)
    stage.time = 2.6
    assert stage.endpoints.is_healthy(first)


def test_an_endpoint_stays_away_as_long_as_it_asked_but_not_for_ever(stage):
    first, second, _ = stage.order
    stage.endpoints.failed(first, for_s=12)
    stage.endpoints.failed(second, for_s=1e9)
    stage.time = 11.9
    assert stage.endpoints.failing() == tuple(url for url in URLS if url in (first, second))
    stage.time = 12.1
    assert stage.endpoints.is_healthy(first)
    stage.time = LONGEST_BACKOFF_S + 0.1
    assert stage.endpoints.failing() == ()


def test_when_all_fail_the_one_is_tried_that_comes_back_first(stage):
    first, second, third = stage.order
    stage.endpoints.failed(first, for_s=20)
    stage.endpoints.failed(second, for_s=10)
    stage.endpoints.failed(third, for_s=15)
    assert stage.choose() == 1


def test_a_failing_endpoint_takes_no_spill(stage):
    stage.loads[stage.order[0]] = 100
    stage.endpoints.failed(stage.order[1])
    assert stage.choose() == 2
    stage.endpoints.failed(stage.order[2])
    assert stage.choose() == 0


def test_the_memory_of_moved_conversations_is_bounded(stage, monkeypatch):
    monkeypatch.setattr(module, "MAX_MOVED", 3)
    stage.endpoints.failed(stage.order[0])
    for number in range(50):
        stage.endpoints.choose(f"task-{number}")
    assert "3 conversations moved" in repr(stage.endpoints)
    for number in range(50):
        stage.endpoints.forget(f"task-{number}")
    assert "0 conversations moved" in repr(stage.endpoints)
