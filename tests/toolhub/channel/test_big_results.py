"""Answers of many megabytes: nobody else waits for them, and there is a limit."""

from __future__ import annotations

import json

import anyio
import pytest
from real_processes import HubFactory, fixture

from toolhub import HubTask, Result, SessionLost
from toolhub.channel.jsonrpc.pipes import decode

pytestmark = pytest.mark.anyio

SIZE = 20_000_000
# Far more than a decoder that holds the interpreter leaves to the loop, and far fewer than one that does not.
TURNS = 20


async def call(task: HubTask, tool: str) -> Result:
    return await task.call("bulky", tool, {"size": SIZE})


async def test_20_mb_arrive_whole_as_plain_text_escaped_text_and_dense_structure(hubs: HubFactory) -> None:
    async with hubs.task(fixture("bulky"), within=120) as task:
        assert len((await call(task, "big")).text) == SIZE
        assert len((await call(task, "escaped")).text) == SIZE // 10 * 3
        assert len((await call(task, "dense")).structured["rows"]) == SIZE // 66


async def test_the_loop_goes_on_while_20_mb_of_dense_structure_are_decoded() -> None:
    row = {"id": 1, "at": [50.1, 8.6], "tags": ["a", "b"], "ok": True}
    line = json.dumps([row] * (SIZE // 66)).encode()
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await anyio.sleep(0.001)
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count_turns)
        assert len(await decode(line)) == SIZE // 66
        tasks.cancel_scope.cancel()
    assert turns > TURNS


async def test_an_answer_over_the_limit_costs_its_session_and_says_why(hubs: HubFactory) -> None:
    good = fixture("echo", name="good")
    bulky = fixture("bulky", stateful=False)
    async with hubs.task(good, bulky, max_result_bytes=1_000_000) as task:
        neighbour = (await task.call("good", "pid")).text
        at_most = await task.call("bulky", "big", {"size": 900_000})
        assert len(json.dumps(at_most.raw)) < 1_000_000
        with pytest.raises(SessionLost, match=r"more than 1000000 bytes \(limits.max_result_bytes\)") as caught:
            await task.call("bulky", "big", {"size": 1_100_000})
        assert caught.value.sent == "maybe"
        assert (await task.call("bulky", "echo", {"text": "again"})).text == "again"
        assert (await task.call("good", "pid")).text == neighbour
