"""What may begin before its call, who may use it, and what is left of it."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from in_memory_hub import Pausing, virtual_time
from running import Running

from toolhub import Hub, Overloaded, ToolNotFound, parse_config
from toolhub.channel.memory import MemoryServer, text_result
from toolhub.config.speculation import SpeculationRule
from toolhub.layers.speculate import derived_arguments
from toolhub.model import OWN_PROFILE, Json, RelayedRequest, Result
from toolhub.overload import overload_signal
from toolhub.task import HubTask

pytestmark = pytest.mark.anyio

READ = {"read_only": True, "speculative": "allow"}
RULE = {
    "after": {"server": "memory", "tool": "search"},
    "then": {"server": "memory", "tool": "read", "arguments": {"url": "organic.*.link"}},
    "first": 2,
}


class Site:
    """Tools over pages: `search` finds what it was told, `read` waits for `go`, `write` counts."""

    def __init__(self) -> None:
        self.found = ["a", "b", "c"]
        self.read_urls: list[str] = []
        self.others: list[str] = []
        self.inside = self.cancelled = 0
        self.answer: Json | None = None
        self.go = anyio.Event()
        self.go.set()

    async def search(self, arguments: Mapping[str, Any]) -> Json:
        return text_result(json.dumps({"organic": [{"link": link} for link in self.found]}))

    async def read(self, arguments: Mapping[str, Any]) -> Json:
        self.read_urls.append(arguments["url"])
        self.inside += 1
        try:
            await self.go.wait()
        except BaseException:
            self.cancelled += 1
            raise
        finally:
            self.inside -= 1
        return self.answer or text_result(f"page {arguments['url']}")

    async def write(self, arguments: Mapping[str, Any]) -> Json:
        self.others.append("write")
        return text_result("written")

    def server(self, **more: Any) -> MemoryServer:
        return MemoryServer(search=self.search, read=self.read, write=self.write, **more)


def a_config(policy: Json | None = None, *, speculation: Json | None = None, limits: Json | None = None, **keys: Any):
    tools = {"policy": {"read": READ} if policy is None else policy}
    return parse_config(
        {
            "servers": {"memory": {"command": "unused", "tools": tools} | keys},
            "speculation": {"mode": "guess", "rules": [RULE]} | (speculation or {}),
            "limits": limits or {},
        }
    )


@asynccontextmanager
async def open_task(site: Site, config: Any = None, **more: Any) -> AsyncIterator[tuple[Hub, HubTask]]:
    async with Hub(config or a_config(), open_channel=site.server().open) as hub, hub.task(**more) as task:
        await task.tools()
        with anyio.fail_after(30):
            yield hub, task


def places_in_use(hub: Hub, task: HubTask) -> int:
    return sum(limiter.in_use for limiter in task._limiters["memory"])


# --- rules ------------------------------------------------------------------------------------------------------------


def test_a_rule_derives_one_call_for_each_place_of_a_result():
    rule = SpeculationRule.model_validate(RULE | {"first": 5})
    result = Result(text_result(json.dumps({"organic": [{"link": "a"}, {"no": 1}, {"link": 3}, {"link": "d"}]})))
    assert list(derived_arguments(rule, result)) == [(0, {"url": "a"}), (3, {"url": "d"})]


@pytest.mark.parametrize("text", ["", "no JSON", "{", "[]", '{"organic": 5}', '{"organic": {"link": "a"}}', "[" * 9000])
def test_a_result_without_the_keys_of_a_rule_derives_nothing(text):
    assert list(derived_arguments(SpeculationRule.model_validate(RULE), Result(text_result(text)))) == []


# --- guesses ----------------------------------------------------------------------------------------------------------


async def test_a_page_that_a_search_found_is_read_before_it_is_asked_for():
    site = Site()
    async with open_task(site) as (hub, task):
        await task.call("memory", "search")
        await anyio.wait_all_tasks_blocked()
        assert sorted(site.read_urls) == ["a", "b"]
        result = await task.call("memory", "read", {"url": "a"})
        assert result.text == "page a"
        assert sorted(site.read_urls) == ["a", "b"]
        statistics = hub.statistics().speculation
        assert (statistics.guesses, statistics.used) == (2, 1)


async def test_a_call_joins_the_guess_that_is_running_and_has_its_progress():
    site = Site()
    site.go = anyio.Event()
    async with open_task(site) as (_, task), anyio.create_task_group() as tasks:
        await task.call("memory", "search")
        await anyio.wait_all_tasks_blocked()
        reading = Running(tasks, task.call, "memory", "read", {"url": "b"})
        await anyio.wait_all_tasks_blocked()
        assert sorted(site.read_urls) == ["a", "b"]
        site.go.set()
        assert (await reading.wait()).text == "page b"


async def test_a_guess_answers_one_call_only():
    site = Site()
    async with open_task(site) as (_, task):
        await task.call("memory", "search")
        await anyio.wait_all_tasks_blocked()
        await task.call("memory", "read", {"url": "a"})
        await task.call("memory", "read", {"url": "a"})
        assert sorted(site.read_urls) == ["a", "a", "b"]


async def test_a_guess_is_never_used_by_another_task():
    site = Site()
    async with open_task(site) as (hub, task), hub.task() as other:
        await task.call("memory", "search")
        await anyio.wait_all_tasks_blocked()
        await other.call("memory", "read", {"url": "a"})
        assert sorted(site.read_urls) == ["a", "a", "b"]


@pytest.mark.parametrize(
    "answer", [text_result("404", is_error=True), {"content": [], "_meta": overload_signal(1).meta()}]
)
async def test_an_error_that_no_call_waited_for_is_not_kept(answer):
    site = Site()
    site.answer = answer
    async with open_task(site) as (_, task):
        await task.call("memory", "search")
        await anyio.wait_all_tasks_blocked()
        site.answer = None
        assert (await task.call("memory", "read", {"url": "a"})).text == "page a"


async def test_a_call_whose_guess_fails_is_made_as_usual():
    site = Site()
    site.go = anyio.Event()
    config = a_config(stateful=False)
    async with open_task(site, config) as (_, task), anyio.create_task_group() as tasks:
        await task.call("memory", "search")
        await anyio.wait_all_tasks_blocked()
        reading = Running(tasks, task.call, "memory", "read", {"url": "a"})
        await anyio.wait_all_tasks_blocked()
        for slot in task.own_slots():
            assert slot.session is not None
            slot.session._channel.end(-9)  # type: ignore[attr-defined]
        while site.read_urls.count("a") < 2:  # `open_task` bounds it
            await anyio.lowlevel.checkpoint()
        site.go.set()
        assert (await reading.wait()).text == "page a"
        assert sorted(site.read_urls) == ["a", "a", "b"]


class McpClient:
    """The client of a relayed request, which hears nothing."""

    id = 1
    listener = None

    def notify(self, method: str, params: Json | None) -> None: ...

    async def request(self, method: str, params: Json | None) -> Json:
        raise AssertionError("no server asks it")

    def close_stream(self) -> None: ...


def relayed(tool: str, arguments: Json, **more: Any) -> RelayedRequest:
    params = {"name": tool, "arguments": arguments, **more}
    return RelayedRequest("tools/call", params, McpClient(), OWN_PROFILE)


async def test_the_calls_of_an_mcp_client_are_foreseen_too():
    site = Site()
    async with open_task(site) as (_, task):
        await task.relay("memory", relayed("search", {}))
        await anyio.wait_all_tasks_blocked()
        assert (await task.relay("memory", relayed("read", {"url": "a"})))["content"][0]["text"] == "page a"
        assert sorted(site.read_urls) == ["a", "b"]


async def test_a_client_that_wants_progress_gets_an_execution_of_its_own():
    site = Site()
    async with open_task(site) as (_, task):
        await task.relay("memory", relayed("search", {}))
        await anyio.wait_all_tasks_blocked()
        await task.relay("memory", relayed("read", {"url": "a"}, _meta={"progressToken": 7}))
        assert sorted(site.read_urls) == ["a", "a", "b"]


# --- what never happens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
async def test_no_tool_that_is_not_declared_is_ever_executed_speculatively(seed):
    pick = random.Random(seed)
    site = Site()
    policy = {
        tool: {"read_only": pick.choice([None, True, False]), "speculative": pick.choice([None, "allow", "deny"])}
        for tool in ("read", "write")
    }
    rules = [RULE | {"then": {"server": "memory", "tool": tool, "arguments": {"url": "organic.*.link"}}}
             for tool in ("read", "write", "nothing")]  # fmt: skip
    allowed = {tool for tool, one in policy.items() if one["read_only"] and one["speculative"] == "allow"}
    mode = pick.choice(["none", "exact", "guess"])
    async with open_task(site, a_config(policy, speculation={"rules": rules, "mode": mode})) as (_, task):
        await task.call("memory", "search")
        for tool in ("read", "write", "nothing"):
            await task.prefetch("memory", tool, {"url": "announced"})
        await task.prefetch("no server", "read", {"url": "announced"})
        await anyio.wait_all_tasks_blocked()
    executed = ({"read"} if site.read_urls else set()) | ({"write"} if site.others else set())
    assert executed == (allowed if mode == "guess" else set())


@pytest.mark.parametrize("mode", ["none", "exact"])
async def test_a_private_task_on_a_hub_that_guesses_discloses_nothing(mode):
    site = Site()
    async with open_task(site, speculation=mode) as (_, task):
        await task.call("memory", "search")
        await task.prefetch("memory", "read", {"url": "a"})
        await anyio.wait_all_tasks_blocked()
        assert site.read_urls == []


async def test_a_task_cannot_have_more_than_the_hub_allows():
    site = Site()
    async with open_task(site, a_config(speculation={"mode": "none"}), speculation="guess") as (_, task):
        await task.call("memory", "search")
        await anyio.wait_all_tasks_blocked()
        assert site.read_urls == []


async def test_a_secret_of_the_server_is_in_no_guess():
    site = Site()
    site.found = ["https://site.example/?key=hunter2-and-more"]
    config = a_config(env={"API_TOKEN": "hunter2-and-more"})
    async with open_task(site, config) as (_, task):
        await task.call("memory", "search")
        await anyio.wait_all_tasks_blocked()
        assert site.read_urls == []


async def test_a_tool_that_is_switched_off_is_not_guessed():
    site = Site()
    config = a_config()
    spec = config.servers["memory"]
    denied = spec.model_copy(update={"tools": spec.tools.model_copy(update={"deny": ["read"]})})
    async with open_task(site, config.model_copy(update={"servers": {"memory": denied}})) as (_, task):
        await task.call("memory", "search")
        await anyio.wait_all_tasks_blocked()
        assert site.read_urls == []
        with pytest.raises(ToolNotFound):
            await task.call("memory", "read", {"url": "a"})


# --- lowest class -----------------------------------------------------------------------------------------------------


async def test_a_guess_never_takes_more_than_half_of_the_places():
    site = Site()
    site.found = list("abcdefgh")
    rules = [RULE | {"first": 8}]
    config = a_config(speculation={"rules": rules, "in_flight": 8, "max_unused": 9}, limits={"concurrency": 6})
    async with open_task(site, config) as (hub, task):
        await task.call("memory", "read", {"url": "real"})
        site.go = anyio.Event()
        await task.call("memory", "search")
        await anyio.wait_all_tasks_blocked()
        assert site.inside == 3
        assert places_in_use(hub, task) == 3 * 3


async def test_a_call_takes_the_place_of_a_guess_without_waiting():
    site = Site()
    site.go = anyio.Event()
    pause = Pausing()
    config = a_config(limits={"concurrency": 2, "queue": 0})
    async with (
        Hub(config, open_channel=site.server(pause=pause).open) as hub,
        hub.task() as task,
        anyio.create_task_group() as tasks,
    ):
        await task.tools()
        await task.call("memory", "search")
        await anyio.wait_all_tasks_blocked()
        assert site.inside == 1
        calls = [Running(tasks, task.call, "memory", "pause") for _ in range(2)]
        await anyio.wait_all_tasks_blocked()
        assert (pause.inside, site.inside, site.cancelled) == (2, 0, 1)
        with pytest.raises(Overloaded):
            await task.call("memory", "pause")
        pause.go.set()
        for call in calls:
            await call.wait()
        assert places_in_use(hub, task) == 0
        assert hub.statistics().speculation.preempted == 1


async def test_a_guess_that_a_call_waits_for_is_no_longer_preempted():
    site = Site()
    site.go = anyio.Event()
    site.found = ["a"]
    config = a_config(limits={"concurrency": 1, "queue": 0})
    async with open_task(site, config) as (_, task), anyio.create_task_group() as tasks:
        await task.call("memory", "search")
        await anyio.wait_all_tasks_blocked()
        reading = Running(tasks, task.call, "memory", "read", {"url": "a"})
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Overloaded):
            await task.call("memory", "search")
        site.go.set()
        assert (await reading.wait()).text == "page a"
        assert site.read_urls == ["a"]


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_happens_to_guesses_nothing_is_left_of_them(seed):
    pick = random.Random(seed)
    site = Site()
    links = (f"page-{number}" for number in itertools.count())
    async with open_task(site, a_config(limits={"concurrency": 4})) as (hub, task):
        for _ in range(15):
            site.found = [next(links) for _ in range(3)]
            site.go = anyio.Event()
            await task.call("memory", "search")
            await anyio.wait_all_tasks_blocked()
            what = pick.choice(["use", "cancel a user", "preempt", "leave"])
            async with anyio.create_task_group() as tasks:
                if what in ("use", "cancel a user"):
                    tasks.start_soon(task.call, "memory", "read", {"url": pick.choice(site.found)})
                if what == "preempt":
                    for _ in range(4):
                        tasks.start_soon(task.call, "memory", "read", {"url": "real"})
                await anyio.wait_all_tasks_blocked()
                if what == "cancel a user":
                    tasks.cancel_scope.cancel()
                site.go.set()
            while site.inside or places_in_use(hub, task):  # `open_task` bounds it
                await anyio.lowlevel.checkpoint()
        await task.aclose()
        assert (len(task._early), task._early.kept_bytes) == (0, 0)


async def test_a_task_that_ends_cancels_its_guesses():
    site = Site()
    site.go = anyio.Event()
    async with open_task(site) as (hub, task):
        await task.call("memory", "search")
        await anyio.wait_all_tasks_blocked()
        assert site.inside == 2
        await hub.close_task(task.id)
        assert (site.inside, site.cancelled) == (0, 2)
        assert hub.limiters[0].in_use == 0


# --- budget -----------------------------------------------------------------------------------------------------------


async def test_unused_guesses_are_bounded_by_the_real_calls():
    site = Site()
    links = (f"page-{number}" for number in itertools.count())
    async with open_task(site, a_config(speculation={"min_hit_rate": 0, "max_unused": 0.5})) as (hub, task):
        for number in range(40):
            site.found = [next(links), next(links)]
            await task.call("memory", "search")
            await anyio.wait_all_tasks_blocked()
            if number % 2:
                await task.call("memory", "read", {"url": "elsewhere"})
        assert hub.statistics().speculation.guesses == 2 + 20 * 0.5


async def test_a_place_of_a_rule_that_is_seldom_right_is_left_out():
    site = Site()
    links = (f"page-{number}" for number in itertools.count())
    async with open_task(site, a_config(speculation={"max_unused": 1000})) as (_, task):
        for _ in range(30):
            site.found = [next(links), next(links)]
            await task.call("memory", "search")
            await anyio.wait_all_tasks_blocked()
            await task.call("memory", "read", {"url": site.found[0]})
        seconds = [url for url in site.read_urls if int(url.split("-")[1]) % 2]
        assert len(site.read_urls) - len(seconds) == 30  # every first page was guessed and used
        assert 9 <= len(seconds) <= 11  # the second ones until that was known, and one that measures it again


class TestTime:
    @pytest.fixture
    def anyio_backend(self):
        return virtual_time()

    async def test_a_result_that_is_too_old_is_not_used(self):
        site = Site()
        async with open_task(site, a_config(speculation={"keep_s": 5})) as (_, task):
            await task.call("memory", "search")
            await anyio.sleep(6)
            await task.call("memory", "read", {"url": "a"})
            assert sorted(site.read_urls) == ["a", "a", "b"]
            assert task._early.kept_bytes == 0

    async def test_at_the_limit_of_a_server_calls_are_as_fast_with_guesses_as_without(self):
        seconds = {mode: await seconds_at_the_limit(mode) for mode in ("none", "guess")}
        assert len(seconds["none"]) == 12 * 30
        assert max(seconds["none"]) > 1.1  # calls had to wait
        assert seconds["guess"] == pytest.approx(seconds["none"])


async def seconds_at_the_limit(mode: str) -> list[float]:
    """How long calls to a server with 8 places take, while searches give rise to guesses; shortest first."""
    links = (f"page-{number}" for number in itertools.count())
    taken: list[float] = []
    guessed = 0

    async def search(arguments: Mapping[str, Any]) -> Json:
        return text_result(json.dumps({"organic": [{"link": next(links)} for _ in range(3)]}))

    async def read(arguments: Mapping[str, Any]) -> Json:
        nonlocal guessed
        guessed += arguments["url"].startswith("page-")
        await anyio.sleep(1)
        return text_result("page")

    async def call(task: HubTask, number: int) -> None:
        pick = random.Random(number)
        for place in range(30):
            await anyio.sleep(pick.expovariate(1.3))
            began = anyio.current_time()
            await task.call("memory", "read", {"url": f"real-{number}-{place}"})
            taken.append(anyio.current_time() - began)

    async def find(task: HubTask) -> None:
        while True:
            await task.call("memory", "search")
            await anyio.sleep(0.1)

    config = a_config(speculation={"mode": mode, "min_hit_rate": 0, "max_unused": 1e6}, share="hub", hub_concurrency=8)
    async with Hub(config, open_channel=MemoryServer(search=search, read=read).open) as hub, hub.task() as task:
        await task.tools()
        async with anyio.create_task_group() as finding:
            finding.start_soon(find, task)
            async with anyio.create_task_group() as calling:
                for number in range(12):
                    calling.start_soon(call, task, number)
            finding.cancel_scope.cancel()
        assert bool(guessed) == (mode == "guess")
        assert bool(hub.statistics().speculation.preempted) == (mode == "guess")
    return sorted(taken)
