"""Answers are kept for a while and within a room, given out as copies, and dropped with their task."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from equal_calls import ACT, READ, SET, AServer, ATask, Work, an_answer, open_coalescer
from hypothesis import given
from hypothesis import strategies as st
from in_memory_hub import a_spec
from running import Running

from toolhub.errors import StartError
from toolhub.layers.cache import Caches, Store
from toolhub.layers.clone import clone_json, size_of
from toolhub.model import CacheStatistics, Result

pytestmark = pytest.mark.anyio

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(), v, max_size=4),
)


@dataclass
class Clock:
    """Seconds that pass when told to."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def a_store(clock: Clock | None = None, **settings: Any) -> tuple[Store, Caches]:
    caches = Caches(clock=clock or Clock())
    store = caches.store(a_spec(cache=settings))
    assert store is not None
    return store, caches


def of_size(size: int) -> Result:
    """A result that takes `size` bytes."""
    empty = size_of(Result({"text": ""}).raw)
    return Result({"text": "x" * (size - empty)})


# --- the store ------------------------------------------------------------------------------------------------------


def test_an_answer_is_kept_until_its_time_is_over():
    clock = Clock()
    store, caches = a_store(clock, ttl_s=10)
    assert store.get("k") is None
    store.put("k", an_answer("one"))
    clock.now += 9.9
    assert store.get("k") == an_answer("one")
    clock.now += 0.1
    assert store.get("k") is None
    assert caches.statistics() == CacheStatistics(hits=1, misses=2, evictions=0, entries=0, bytes=0)


def test_a_hit_does_not_make_an_answer_live_longer_and_neither_does_a_second_put():
    clock = Clock()
    store, _ = a_store(clock, ttl_s=10)
    store.put("k", an_answer("one"))
    clock.now += 6
    assert store.get("k") is not None
    store.put("k", an_answer("two"))
    assert store.get("k") == an_answer("one")
    clock.now += 6
    store.put("k", an_answer("three"))
    assert store.get("k") == an_answer("three")


def test_what_was_not_asked_for_longest_makes_room():
    store, caches = a_store(max_bytes=4000)
    for key in "abcd":
        store.put(key, of_size(1000))
    assert store.get("a") is not None
    store.put("e", of_size(1000))
    assert [key for key in "abcde" if store.get(key) is not None] == ["a", "c", "d", "e"]
    counted = caches.statistics()
    assert (counted.evictions, counted.entries, counted.bytes) == (1, 4, 4000)


def test_what_is_too_old_makes_room_first_and_is_no_eviction():
    clock = Clock()
    store, caches = a_store(clock, max_bytes=4000, ttl_s=10)
    store.put("a", of_size(1000))
    store.put("b", of_size(1000))
    clock.now += 10
    store.put("c", of_size(1000))
    counted = caches.statistics()
    assert (counted.evictions, counted.entries, counted.bytes) == (0, 1, 1000)


@pytest.mark.parametrize(("size", "is_kept"), [(1000, True), (1001, False)])
def test_an_answer_larger_than_a_quarter_of_the_room_is_not_kept(size, is_kept):
    store, _ = a_store(max_bytes=4000)
    store.put("k", of_size(size))
    assert (store.get("k") is not None) is is_kept


def test_what_a_reader_does_with_an_answer_changes_no_other_s():
    store, _ = a_store()
    mine = an_answer("one")
    store.put("k", mine)
    mine.raw["content"][0]["text"] = "changed by who brought it"
    for _ in range(2):
        given = store.get("k")
        assert given == an_answer("one")
        given.raw["content"][0]["text"] = "changed by a reader"
        given.raw["content"].append({})
        given.raw["more"] = 1


@pytest.mark.parametrize("seed", range(10))
def test_the_books_are_right_whatever_happens(seed):
    rng, clock = random.Random(seed), Clock()
    store, caches = a_store(clock, max_bytes=20_000, ttl_s=5)
    truth: dict[str, tuple[Result, float]] = {}
    for _ in range(1500):
        key = rng.choice("abcdefghijklmnopqrst")
        clock.now += rng.random() / 4
        found = store.get(key)
        if found is None:
            truth[key] = of_size(rng.randrange(500, 5500)), clock.now
            store.put(key, truth[key][0])
        else:
            result, put_at = truth[key]
            assert (found, clock.now < put_at + 5) == (result, True)
        counted = caches.statistics()
        assert counted.bytes <= 20_000
        assert (counted.bytes == 0) == (counted.entries == 0)
    assert counted.hits + counted.misses == 1500
    assert counted.hits > 0 < counted.evictions
    store.close()
    assert caches.statistics().bytes == caches.statistics().entries == 0


# --- copies ---------------------------------------------------------------------------------------------------------


def containers(value: Any) -> Iterator[int]:
    if isinstance(value, dict | list):
        yield id(value)
        for member in value.values() if isinstance(value, dict) else value:
            yield from containers(member)


@given(st.dictionaries(st.text(), JSON))
def test_a_copy_is_equal_and_shares_no_container(raw):
    twin = clone_json(raw)
    assert twin == raw
    assert not set(containers(twin)) & set(containers(raw))


def test_nothing_is_nested_too_deeply_to_be_copied_and_measured():
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": [deep]}
    assert size_of(clone_json(deep)) > 100_000
    while deep:  # taken apart step by step: letting go of it at once would be as deep
        deep = deep.pop("a").pop() if "a" in deep else {}


@given(st.text(max_size=2000))
def test_the_size_is_what_the_text_really_takes(text):
    raw = {"content": [{"type": "text", "text": text}]}
    assert 0 <= size_of(raw) - sys.getsizeof(text) < 1500


# --- the layer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cache", "policy", "runs"),
    [
        (None, READ, 2),
        ({}, READ, 1),
        ({}, SET, 2),
        ({}, ACT, 2),
    ],
)
async def test_only_answers_of_read_only_tools_are_kept_and_only_where_that_is_asked_for(cache, policy, runs):
    async with open_coalescer() as coalescer:
        work = Work()
        work.go.set()
        task = ATask(coalescer, work, AServer(a_spec(share="hub", cache=cache)))
        for _ in range(2):
            assert (await task.call(policy=policy)).text == "done"
        assert work.runs == runs


@pytest.mark.parametrize(("scope", "runs"), [("task", 2), ("hub", 1)])
async def test_an_answer_goes_as_far_as_the_scope_says(scope, runs):
    async with open_coalescer() as coalescer:
        work, caches = Work(), Caches()
        work.go.set()
        spec = a_spec(share="hub", cache={"scope": scope})
        for task in [ATask(coalescer, work, AServer(spec), caches) for _ in range(2)]:
            for _ in range(2):
                await task.call()
        assert work.runs == runs


async def test_an_answer_is_given_only_to_equal_calls_of_an_equal_server():
    async with open_coalescer() as coalescer:
        work, caches = Work(), Caches()
        work.go.set()
        specs = [a_spec(share="hub", env=env, cache={"scope": "hub"}) for env in ({}, {"KEY": "another"})]
        for spec in specs:
            task = ATask(coalescer, work, AServer(spec), caches)
            for arguments in ({"n": 1}, {"n": 1.0}, {"n": True}, {"n": b"1"}, {"n": b"1"}):
                await task.call("read", arguments)
        assert work.runs == 10


async def test_neither_errors_nor_failed_results_are_kept():
    async with open_coalescer() as coalescer:
        work = Work(StartError("not yet"))
        work.go.set()
        task = ATask(coalescer, work, AServer(a_spec(share="hub", cache={})))
        with pytest.raises(StartError):
            await task.call()
        work.answer = Result(an_answer("no such page").raw | {"isError": True})
        assert (await task.call()).is_error
        work.answer = Result(an_answer("the service is busy").raw | {"_meta": {"toolhub/retry_after": 0}})
        assert (await task.call()).text == "the service is busy"
        work.answer = an_answer("here")
        assert (await task.call()).text == "here"
        assert work.runs == 4


async def test_equal_calls_that_all_miss_are_made_once_and_fill_the_store_once():
    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        work, caches = Work(), Caches()
        server = AServer(a_spec(share="hub", coalesce="task", cache={"scope": "hub"}))
        callers = [Running(tasks, ATask(coalescer, work, server, caches).call) for _ in range(20)]
        await anyio.wait_all_tasks_blocked()
        work.go.set()
        assert {(await caller.wait()).text for caller in callers} == {"done"}
        counted = caches.statistics()
        assert (work.runs, counted.misses, counted.entries) == (1, 20, 1)


async def test_closing_a_task_drops_its_answers_and_no_other_s():
    async with open_coalescer() as coalescer:
        work, caches = Work(), Caches()
        work.go.set()
        server = AServer(a_spec(share="hub", cache={}))
        closing, staying = (ATask(coalescer, work, server, caches) for _ in range(2))
        await closing.call()
        await staying.call()
        closing.close()
        assert caches.statistics().entries == 1
        await staying.call()
        assert work.runs == 2
        staying.close()
        assert (caches.statistics().entries, caches.statistics().bytes) == (0, 0)


async def test_an_answer_that_comes_after_its_task_was_closed_is_not_kept():
    async with open_coalescer() as coalescer, anyio.create_task_group() as tasks:
        work, caches = Work(), Caches()
        task = ATask(coalescer, work, AServer(a_spec(share="hub", cache={})), caches)
        late = Running(tasks, task.call)
        await anyio.wait_all_tasks_blocked()
        task.close()
        work.go.set()
        await late.wait()
        assert caches.statistics().entries == 0


async def test_a_write_makes_what_was_read_before_it_old():
    async with open_coalescer() as coalescer:
        work, caches = Work(), Caches()
        work.go.set()
        task = ATask(coalescer, work, AServer(a_spec(cache={})), caches)
        for tool, policy in (("read", READ), ("read", READ), ("write", ACT), ("read", READ), ("read", READ)):
            await task.call(tool, policy=policy)
        assert [call.tool for call in work.calls] == ["read", "write", "read"]


async def test_servers_of_one_name_share_a_store_however_many_tasks_fill_in_their_own_variables():
    caches = Caches()
    specs = [a_spec(env={"TASK": str(n)}, share="hub", cache={"scope": "hub"}) for n in range(3)]
    stores = {id(caches.for_task().store(spec)) for spec in specs}
    assert len(stores) == 1
