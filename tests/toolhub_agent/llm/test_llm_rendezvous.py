"""Rendezvous hashing."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from toolhub_agent.llm.endpoint_pool import rendezvous_order

ENDPOINTS = st.sets(st.from_regex(r"http://[a-z]{1,8}:[0-9]{2,4}/v1", fullmatch=True), min_size=1, max_size=8)


@given(st.text(max_size=40), ENDPOINTS)
def test_an_endpoint_that_leaves_moves_nobody_else(session, endpoints):
    order = rendezvous_order(session, endpoints)
    for gone in endpoints:
        assert rendezvous_order(session, endpoints - {gone}) == [url for url in order if url != gone]


@given(st.text(max_size=40), ENDPOINTS, st.just("http://new:1/v1"))
def test_an_endpoint_that_comes_only_takes_what_it_wins(session, endpoints, new):
    before, after = rendezvous_order(session, endpoints), rendezvous_order(session, endpoints | {new})
    assert after[0] in (before[0], new)


def test_conversations_spread_evenly():
    endpoints = [f"http://host{n}:8000/v1" for n in range(4)]
    homes = Counter(rendezvous_order(f"task-{n}", endpoints)[0] for n in range(4000))
    assert all(850 < homes[url] < 1150 for url in endpoints)


def test_every_process_gives_the_same_order():
    code = (
        "from toolhub_agent.llm.endpoint_pool import rendezvous_order as order; "
        "print(*order('task', ['http://a/v1', 'http://b/v1', 'c']))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert told == {" ".join(rendezvous_order("task", ["http://a/v1", "http://b/v1", "c"])) + "\n"}
