"""What each engine is asked: contract tests on stand-ins that answer as the engines' sources and documents say."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx2
import pytest
from toolhub_agent.kv_hints.engines import adapter_for, identify, version_of
from toolhub_agent.kv_hints.estimates import ToolDurations
from toolhub_agent.kv_hints.signals import Prompt
from toolhub_agent.kv_hints.template import TemplateChecks, TemplateVerdict

from tests.toolhub_agent.kv_hints.hint_stage import (
    URL,
    Agent,
    Engine,
    after_first_turn,
    opened,
    tools_take,
    virtual_time,
)

pytestmark = [pytest.mark.anyio, pytest.mark.quick]

SGLANG = {"radix_eviction_policy": "lru", "schedule_policy": "fcfs", "version": "0.5.9"}
PROMPT = Prompt(
    ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "<use_mcp_tool>"}), {"model": "m"}, URL
)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time()


def engine_of(**pages: Any) -> Engine:
    """A stand-in with these pages; a double underscore is a slash."""
    return Engine(pages={f"/{name.replace('__', '/')}": answer for name, answer in pages.items()})


async def probed(kind: Any, engine: Engine, **more: Any):
    adapter = adapter_for(kind, URL, **more)
    async with engine.client() as http:
        await adapter.probe(http)
    return adapter


async def one_wait(kind: Any, engine: Engine, **settings: Any) -> None:
    """A turn, a tool wait with its prefetch, the next turn, the end."""
    async with after_first_turn(engine, 12.0, kind=kind, **settings) as agent:
        await agent.step()
        agent.end()


@pytest.mark.parametrize(
    ("pages", "kind"),
    [
        ({"version": {"version": "0.32.0+cpu"}}, "vllm"),
        ({"server_info": SGLANG}, "sglang"),
        ({"get_server_info": SGLANG}, "sglang"),
        ({"server_info": {"server_args": SGLANG}}, "sglang"),
        ({"props": {"default_generation_settings": {}, "total_slots": 1}}, "llamacpp"),
        ({"health": {"status": "healthy", "instances": [], "endpoints": []}}, "dynamo"),
        ({"health": {"status": "ok"}}, "generic"),
    ],
)
async def test_a_server_is_recognised_by_what_it_says_of_itself(pages, kind):
    async with engine_of(**pages).client() as http:
        assert await identify(http, URL) == kind


@pytest.mark.parametrize(("text", "version"), [("0.32.0+cpu", (0, 32, 0)), ("v1.2", (1, 2)), ("dev", ()), (None, ())])
def test_versions_are_read(text, version):
    assert version_of(text) == version


@pytest.mark.parametrize(("version", "has_priority"), [("0.32.0", True), ("0.9.1", False), ("nightly", False)])
async def test_vllm_gets_a_low_priority_only_from_the_version_that_takes_one_always(version, has_priority):
    engine = engine_of(version={"version": version})
    await one_wait("vllm", engine)
    assert ("priority" in engine.prefetches[0]) is has_priority


async def test_a_vllm_that_refuses_priorities_is_asked_again_without_and_never_again_with_one():
    def strict(path, body):
        return (400, {"error": {"message": "priority 100 needs priority scheduling"}}) if "priority" in body else None

    engine = Engine(refuse=strict)
    async with after_first_turn(engine, 12.0) as agent:
        await agent.step(meanwhile=engine.cache.clear)
        await agent.step(meanwhile=engine.cache.clear)
        assert agent.hints.statistics().prefetches_failed == 0
    assert ["priority" in prefetch for prefetch in engine.prefetches] == [True, False, False]


async def test_vllm_without_the_plugin_is_asked_for_nothing_but_prefetches():
    engine = Engine()
    await one_wait("vllm", engine)
    adapter = adapter_for("vllm", URL)
    assert adapter.engine_fields("s", ttl=9).body == {}
    assert {path for path, _, _ in engine.seen} == {"/version", "/tokenize", "/v1/chat/completions"}


async def test_a_pin_rides_on_the_turns_own_request_and_is_released_at_the_end():
    engine, durations = Engine(), ToolDurations()
    for _ in range(200):
        durations.observe("s", "tool0", 3.0)
    async with opened(engine, use_pin_scheduler=True, more={"durations": durations}) as hints:
        agent = Agent(engine, hints)
        await agent.turn()
        fields = hints.engine_fields(agent.name, URL)
        # Long enough for nine of ten tools and half as long again: its pins give way to whoever needs the memory.
        assert fields.body == {"vllm_xargs": {"pin_ttl_s": 3.0 * 1.5 + 0.5, "session_id": "task-1"}}
        agent.end()
        await anyio.sleep(1)
        statistics = hints.statistics()
    assert engine.seen[-1][1]["vllm_xargs"] == {"release_session": "task-1"}
    assert engine.seen[-1][1]["max_tokens"] == 1
    assert (statistics.pins, statistics.releases) == (1, 1)


async def test_no_pin_is_longer_than_allowed():
    engine, durations = Engine(), ToolDurations()
    for _ in range(200):
        durations.observe("s", "tool0", 3.0)
    async with opened(engine, use_pin_scheduler=True, max_pin_s=2, more={"durations": durations}) as hints:
        agent = Agent(engine, hints)
        await agent.turn()
        assert hints.engine_fields(agent.name, URL).body["vllm_xargs"]["pin_ttl_s"] == 2.0


async def test_sglang_with_the_session_cache_knows_the_session_until_it_is_closed():
    engine = engine_of(server_info=SGLANG | {"enable_session_radix_cache": True}, close_session={})
    await one_wait("sglang", engine)
    (prefetch,) = engine.prefetches
    assert prefetch["session_id"] == "task-1"
    assert prefetch["rid"].startswith("toolhub-prefetch-")
    assert "add_generation_prompt" not in prefetch
    assert engine.asked("/close_session") == [{"session_id": "task-1"}]
    adapter = await probed("sglang", engine)
    assert adapter.engine_fields("s", ttl=0).body == {"session_id": "s"}


async def test_a_plain_sglang_gets_neither_session_nor_priority():
    engine = engine_of(server_info=SGLANG)
    await one_wait("sglang", engine)
    assert not {"session_id", "priority"} & set(engine.prefetches[0])
    assert engine.asked("/close_session") == []
    assert (await probed("sglang", engine)).engine_fields("s", ttl=9).body == {}


@pytest.mark.parametrize(("low_first", "turn", "default_warm"), [(False, 1, -100), (True, -1, 100)])
async def test_sglangs_priorities_follow_the_direction_of_its_scheduler(low_first, turn, default_warm):
    scheduling = {"enable_priority_scheduling": True, "schedule_low_priority_values_first": low_first}
    evicting = await probed(
        "sglang", engine_of(server_info=SGLANG | scheduling | {"radix_eviction_policy": "priority"})
    )
    assert evicting.engine_fields("s", ttl=0).body == {"priority": turn}
    assert evicting.prefetch_body("s", "r")["priority"] == turn  # else what it restores would be the first to go
    plain = await probed("sglang", engine_of(server_info=SGLANG | scheduling))
    assert "priority" not in plain.prefetch_body("s", "r")  # without one it is the last already
    default = await probed("sglang", engine_of(server_info=SGLANG | scheduling | {"default_priority_value": 0}))
    assert default.prefetch_body("s", "r")["priority"] == default_warm


async def test_sglang_is_told_to_abort_as_it_notices_closed_connections_late():
    engine = engine_of(server_info=SGLANG, abort_request={})
    async with after_first_turn(engine, 20.0, kind="sglang") as agent:
        await agent.step(16.0, meanwhile=engine.cache.clear)
    assert engine.asked("/abort_request") == [{"rid": engine.prefetches[0]["rid"]}]


async def test_dynamos_parser_refuses_nvext_once_and_no_turn_ever_carries_it():
    def strict(path, body):
        return (400, {"message": "invalid nvext: unknown field"}) if "nvext" in body else None

    engine = Engine(refuse=strict, pages={})
    async with opened(engine, kind="dynamo") as hints:
        tools_take(hints, 12.0)
        agent = Agent(engine, hints)
        fields = hints.engine_fields(agent.name, URL)
        assert (dict(fields.headers), dict(fields.body)) == ({"X-Dynamo-Session-ID": "task-1"}, {})
        await agent.turn()
        await agent.step(meanwhile=engine.cache.clear)
        await agent.step(meanwhile=engine.cache.clear)
        assert hints.statistics().prefetches_failed == 0
        agent.end()
    prefetches = engine.prefetches[:-1]
    assert ["nvext" in prefetch for prefetch in prefetches] == [True, False, False]
    assert all("session_id" not in prefetch and "add_generation_prompt" not in prefetch for prefetch in prefetches)
    final = engine.seen[-1][2]
    assert (final["x-dynamo-session-final"], final["x-dynamo-session-id"]) == ("true", "task-1")


async def test_llamacpps_template_is_asked_by_rendering_and_tokenising():
    def apply(body):
        return {"prompt": "".join(f"<{m['role']}>{m.get('content')}" for m in body["messages"])}

    engine = Engine(
        pages={"/apply-template": apply, "/tokenize": lambda body: {"tokens": [ord(c) for c in body["content"]]}}
    )
    async with engine.client() as http:
        verdict = await TemplateChecks().check(http, adapter_for("llamacpp", URL), PROMPT)
    assert verdict is TemplateVerdict.APPEND_ONLY
    assert all(body["add_generation_prompt"] is False for body in engine.asked("/apply-template"))


async def test_any_other_server_gets_only_what_openais_api_has():
    engine = Engine(pages={})
    await one_wait("generic", engine)
    assert set(engine.prefetches[0]) == {"model", "tools", "tool_choice", "messages", "max_tokens", "stream"}


class Coordinator:
    """A stand-in for LMCache's coordinator, as its `http_apis` and `schemas` are written; pins are counted."""

    def __init__(self, *, instances: int = 1, status: str = "submitted") -> None:
        self.calls: list[tuple[str, str, Any]] = []
        self.pins = 0
        self._instances = [{"instance_id": f"mp-{n}", "ip": f"10.0.0.{n}", "metadata": {}} for n in range(instances)]
        self._status = status

    async def handle(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content or b"null")
        self.calls.append((request.method, request.url.path, body))
        self.pins += {"POST": 1, "DELETE": -1}.get(request.method, 0) * (request.url.path == "/cache/pins")
        answers = {"/instances": {"instances": self._instances}, "/cache/prefetches": {"status": self._status}}
        return httpx2.Response(200, json=answers.get(request.url.path, {}))

    def made(self, method: str, path: str) -> list[Any]:
        return [body for verb, seen, body in self.calls if (verb, seen) == (method, path)]


async def with_lmcache(
    monkeypatch, coordinator: Coordinator, engine: Engine, *steps: float, tokens: int = 2500
) -> None:
    real = httpx2.AsyncClient
    monkeypatch.setattr(engine, "client", lambda _url=URL: real(transport=httpx2.MockTransport(engine.handle)))
    monkeypatch.setattr(httpx2, "AsyncClient", lambda **_more: real(transport=httpx2.MockTransport(coordinator.handle)))
    durations = ToolDurations()
    for _ in range(200):
        durations.observe("s", "tool0", 3.0)
    async with opened(
        engine, lmcache="http://lmcache.test:9300", more={"durations": durations}, lead_time_s=0
    ) as hints:
        agent = Agent(engine, hints, prompt_tokens=tokens)
        await agent.turn()
        for step in steps:
            await agent.step(step)


async def test_lmcache_holds_the_tokens_while_tools_run_and_gets_each_pin_back_once(monkeypatch):
    coordinator = Coordinator()
    await with_lmcache(monkeypatch, coordinator, Engine(), 3.0, 60.0, tokens=5000)
    assert coordinator.pins == 0
    pins = coordinator.made("POST", "/cache/pins")
    assert len(pins) == 2
    assert (pins[0]["model_name"], pins[0]["world_size"], pins[0]["cache_salt"]) == ("m", 1, "")
    assert len(pins[0]["token_ids"]) > 5000


async def test_lmcache_loads_ahead_instead_of_the_engine(monkeypatch):
    coordinator, engine = Coordinator(), Engine()
    await with_lmcache(monkeypatch, coordinator, engine, 3.0)
    (asked,) = coordinator.made("POST", "/cache/prefetches")
    assert asked["instance_id"] == "mp-0"
    assert engine.prefetches == []


@pytest.mark.parametrize("coordinator", [Coordinator(status="noop"), Coordinator(instances=2)])
async def test_where_lmcache_has_nothing_or_its_node_is_unclear_the_engine_is_prefetched(monkeypatch, coordinator):
    engine = Engine()
    await with_lmcache(monkeypatch, coordinator, engine, 3.0)
    assert len(engine.prefetches) == 1
