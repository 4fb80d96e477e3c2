"""The limiters of a hub:

of a task, of a server in all tasks, of everything; and requests, which pass them like calls.
"""

from __future__ import annotations

import anyio
import pytest
from in_memory_hub import Pausing, a_hub, echo, virtual_time
from running import Running

from toolhub.channel.memory import MemoryServer, text_result
from toolhub.errors import CallTimeout, Overloaded

pytestmark = pytest.mark.anyio


async def test_one_task_has_no_more_calls_in_flight_than_its_limit():
    pausing = Pausing()
    limits = {"task_concurrency": 2}
    async with a_hub(MemoryServer(work=pausing), limits=limits) as hub, hub.task("one") as one, hub.task("two") as two:
        async with anyio.create_task_group() as tasks:
            for task in [one] * 5 + [two]:
                tasks.start_soon(task.call, "memory", "work")
            await anyio.wait_all_tasks_blocked()
            assert pausing.inside == 3
            assert [task.statistics().waiting for task in (one, two)] == [3, 0]
            pausing.go.set()
        assert one.statistics().waiting == 0


async def test_hub_concurrency_counts_the_calls_of_all_tasks_though_each_has_a_session_of_its_own():
    pausing = Pausing()
    async with a_hub(MemoryServer(work=pausing), memory={"hub_concurrency": 3}) as hub:
        async with hub.task("one") as one, hub.task("two") as two, anyio.create_task_group() as tasks:
            for task in [one, two] * 4:
                tasks.start_soon(task.call, "memory", "work")
            await anyio.wait_all_tasks_blocked()
            assert pausing.inside == 3
            (limiter,) = [limiter for limiter in hub.statistics().limiters if "in the whole hub" in limiter.name]
            assert (limiter.limit, limiter.in_use, limiter.waiting) == (3, 3, 5)
            pausing.go.set()


async def test_a_quiet_task_comes_in_beside_a_burst_of_another():
    order: list[str] = []

    async def work(arguments):
        order.append(arguments["who"])
        return text_result("")

    limits = {"concurrency": 1, "task_concurrency": 9999}
    async with a_hub(MemoryServer(work=work), limits=limits, memory={"concurrency": 9999}) as hub:
        async with hub.task("noisy") as noisy, hub.task("quiet") as quiet:
            await noisy.warm()
            await quiet.warm()
            async with anyio.create_task_group() as tasks:
                for _ in range(300):
                    tasks.start_soon(noisy.call, "memory", "work", {"who": "noisy"})
                await anyio.wait_all_tasks_blocked()
            order.clear()
            async with anyio.create_task_group() as tasks:
                for _ in range(300):
                    tasks.start_soon(noisy.call, "memory", "work", {"who": "noisy"})
                tasks.start_soon(quiet.call, "memory", "work", {"who": "quiet"})
            assert "quiet" in order[:6]


async def test_runs_are_weighted_by_the_config():
    limits = {"run_weights": {"paper": 3}}
    async with a_hub(MemoryServer(echo=echo), limits=limits) as hub:
        async with hub.task("one", run="paper", weight=2) as one, hub.task("two") as two:
            assert (one.share_key.run_weight, one.share_key.weight) == (3, 2)
            assert (two.share_key.run_weight, two.share_key.weight) == (1, 1)


async def test_an_adaptive_server_that_asks_for_patience_is_left_alone_for_so_long():
    asked = 0

    async def work(arguments):
        nonlocal asked
        asked += 1
        patience = {"_meta": {"toolhub/retry_after": 3.0}, "isError": True} if asked == 1 else {}
        return text_result("") | patience

    async with a_hub(MemoryServer(work=work), memory={"adaptive": True}) as hub, hub.task("one") as one:
        assert (await one.call("memory", "work")).is_error
        (limiter,) = [limiter for limiter in hub.limiters if limiter.adaptive]
        assert limiter.expected_wait(one.share_key) == pytest.approx(3, abs=0.5)
        with pytest.raises(Overloaded, match="after its deadline") as refusal:
            await one.call("memory", "work", timeout=1)
        assert refusal.value.sent == "no" and 2 < refusal.value.retry_after <= 3
        assert asked == 1


async def test_the_hubs_own_refusals_do_not_slow_a_server_down():
    pausing = Pausing()
    limits = {"concurrency": 1, "queue": 0}
    async with a_hub(MemoryServer(work=pausing), limits=limits, memory={"adaptive": True}) as hub:
        async with hub.task("one") as one, anyio.create_task_group() as tasks:
            tasks.start_soon(one.call, "memory", "work")
            await anyio.wait_all_tasks_blocked()
            (limiter,) = [limiter for limiter in hub.limiters if limiter.adaptive]
            before = limiter.limit
            for _ in range(20):
                with pytest.raises(Overloaded):
                    await one.call("memory", "work")
            assert limiter.limit == before
            pausing.go.set()


class TestInTime:
    @pytest.fixture
    def anyio_backend(self):
        return virtual_time()

    async def test_a_request_has_the_deadline_of_a_call_and_waits_its_turn(self):
        pausing = Pausing()
        server = MemoryServer(work=pausing)
        async with a_hub(server, memory={"concurrency": 1, "call_timeout_s": 7}) as hub, hub.task("one") as one:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one.call, "memory", "work")
                await anyio.wait_all_tasks_blocked()
                before = anyio.current_time()
                pausing_call = Running(tasks, one.request, "memory", "tools/list")
                await anyio.wait_all_tasks_blocked()
                assert one.statistics().waiting == 1
                assert not pausing_call.is_done
                pausing.go.set()
                assert "tools" in await pausing_call.wait()
                assert anyio.current_time() == before

    async def test_a_request_that_waits_too_long_says_that_nothing_was_sent(self):
        server = MemoryServer(work=Pausing())
        async with a_hub(server, memory={"concurrency": 1, "call_timeout_s": 7}) as hub, hub.task("one") as one:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: one.call("memory", "work", timeout=60))
                await anyio.wait_all_tasks_blocked()
                with pytest.raises(CallTimeout, match="still waited in a queue") as late:
                    await one.request("memory", "tools/list")
                assert late.value.sent == "no"
                tasks.cancel_scope.cancel()

    async def test_paused_calls_go_on_when_the_pause_is_over_though_nobody_leaves(self):
        answers = [text_result("") | {"_meta": {"toolhub/retry_after": 3.0}, "isError": True}]

        async def work(arguments):
            return answers.pop() if answers else text_result("")

        async with a_hub(MemoryServer(work=work), memory={"adaptive": True}) as hub, hub.task("one") as one:
            began = anyio.current_time()
            async with anyio.create_task_group() as tasks:
                for _ in range(60):
                    tasks.start_soon(one.call, "memory", "work")
            assert anyio.current_time() - began == pytest.approx(3, abs=0.01)
