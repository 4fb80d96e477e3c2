"""Pins on a real engine: a pinned conversation outlives others' requests, and never stands in their way.

The cache has 96 blocks, of which pins may have half. A test begins with an empty one, and emptying it succeeds only if
every reference to every block was given back.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import httpx2
import openai
import pytest
from anyio.from_thread import start_blocking_portal
from openai.types import Completion
from prometheus_client.parser import text_string_to_metric_families

from testbed.engine.install import installed
from testbed.engine.server import EngineOptions, EngineServer, open_engine

pytestmark = pytest.mark.anyio

AGENT_LOOP = Path(__file__).parents[2] / "agent_loop"
BLOCK, BLOCKS = 32, 96
CAP = BLOCKS // 2
# Only against hanging: a request that no pin yields to would wait for ever.
PATIENCE_S = 60
# Longer than any test takes.
LONG_S = 300


@pytest.fixture(scope="module")
def pinning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    folder = tmp_path_factory.mktemp("pins")
    options = EngineOptions(
        blocks=BLOCKS + 1,  # one is the engine's own
        block_size=BLOCK,
        scheduler_cls="toolhub_agent.vllm_plugin.PinScheduler",
        python_path=[AGENT_LOOP],
        environment={"PROMETHEUS_MULTIPROC_DIR": str(folder)},
    )
    opened = open_engine(options, log=folder / "log")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opened) as engine:
        yield engine


class Bench:
    """Requests of whole blocks to that engine, and what it says of its pins."""

    def __init__(self, client: openai.AsyncOpenAI, http: httpx2.AsyncClient) -> None:
        self.client = client
        self.http = http
        self._before: dict[str, float] = {}

    async def ask(self, prompt: Sequence[int], *, answer: int = 1, body: Any = None, **xargs: Any) -> Completion:
        return await self.client.completions.create(
            model="m",
            prompt=list(prompt),
            max_tokens=answer,
            temperature=0,
            extra_body={"ignore_eos": True, "vllm_xargs": xargs} | (body or {}),
        )

    async def cached_blocks(self, prompt: Sequence[int]) -> int:
        """How much of a prompt is in the cache; without pinning it. One block at least is computed in any case."""
        usage = (await self.ask([*prompt, 1])).usage
        assert usage is not None and usage.prompt_tokens_details is not None
        return (usage.prompt_tokens_details.cached_tokens or 0) // BLOCK

    async def fill(self) -> None:
        """Others' requests: together they take every block that is free, twice."""
        for _ in range(8):
            await self.ask(conversation(BLOCKS // 4 - 1))

    async def reset(self) -> bool:
        answer = await self.http.post("/reset_prefix_cache")
        return bool(answer.raise_for_status().json()["success"])

    async def metrics(self) -> dict[str, float]:
        """Pins and blocks now; since the test began, the pins that each event happened to, and preemptions."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families((await self.http.get("/metrics")).text):
            for sample in family.samples:
                if sample.name in ("toolhub_pins", "toolhub_pinned_blocks"):
                    found[sample.name] = sample.value
                elif sample.name == "toolhub_pin_events_total":
                    found[sample.labels["event"]] = sample.value
                elif sample.name == "vllm:num_preemptions_total":
                    found["preempted"] = found.get("preempted", 0) + sample.value
        return found

    async def begin(self) -> None:
        assert await self.reset()
        self._before = await self.metrics()

    async def count(self, event: str) -> float:
        return (await self.metrics())[event] - self._before[event]

    async def until(self, event: str, count: int) -> None:
        """Keep the engine at work until an event has happened; it looks at the clock only then."""
        while await self.count(event) < count:
            await self.ask(conversation(1))


def conversation(blocks: int) -> list[int]:
    """Tokens that no other prompt begins with."""
    return random.Random(uuid4().int).choices(range(100, 4000), k=blocks * BLOCK)


def session() -> str:
    return f"task-{uuid4().hex}"


@pytest.fixture
async def bench(pinning: EngineServer) -> AsyncIterator[Bench]:
    web = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with (
        openai.AsyncOpenAI(base_url=pinning.openai_url, api_key="none", http_client=web, max_retries=0) as client,
        httpx2.AsyncClient(base_url=pinning.url, trust_env=False, timeout=PATIENCE_S) as http,
    ):
        bench = Bench(client, http)
        with anyio.fail_after(PATIENCE_S):
            await bench.begin()
            yield bench
            assert await bench.reset(), "a block is still in use"


async def test_without_a_pin_others_evict_a_conversation(bench: Bench) -> None:
    prompt = conversation(20)
    await bench.ask(prompt)
    assert await bench.cached_blocks(prompt) == 20
    await bench.fill()
    assert await bench.cached_blocks(prompt) == 0
    assert await bench.count("held") == 0


async def test_a_pinned_conversation_stays(bench: Bench) -> None:
    prompt = conversation(20)
    await bench.ask(prompt, pin_ttl_s=LONG_S, session_id=session())
    await bench.fill()
    assert await bench.cached_blocks(prompt) == 20


async def test_its_answer_stays_too(bench: Bench) -> None:
    prompt = conversation(10)
    answer = await bench.ask(
        prompt, answer=3 * BLOCK, body={"return_token_ids": True}, pin_ttl_s=LONG_S, session_id=session()
    )
    decoded = (answer.choices[0].model_extra or {})["token_ids"]
    await bench.fill()
    # The last token's keys and values are computed only when another follows.
    assert await bench.cached_blocks(prompt + decoded) == 12


async def test_a_chat_is_pinned_the_same(bench: Bench) -> None:
    async def ask(**xargs: Any) -> int:
        answer = await bench.client.chat.completions.create(
            model="m", messages=messages, max_tokens=1, extra_body={"vllm_xargs": xargs} if xargs else None
        )
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    messages: Any = [{"role": "user", "content": f"{uuid4().hex} " + "What is the capital of France? " * 40}]
    assert await ask(pin_ttl_s=LONG_S, session_id=session()) == 0
    await bench.fill()
    assert await ask() > 5 * BLOCK


async def test_a_pin_ends_with_its_time(bench: Bench) -> None:
    prompt = conversation(20)
    await bench.ask(prompt, pin_ttl_s=0.2, session_id=session())
    await bench.until("expired", 1)
    await bench.fill()
    assert await bench.cached_blocks(prompt) == 0
    assert (await bench.metrics())["toolhub_pinned_blocks"] == 0


async def test_a_released_session_is_evicted_and_another_stays(bench: Bench) -> None:
    released, kept, name = conversation(20), conversation(20), session()
    await bench.ask(released, pin_ttl_s=LONG_S, session_id=name)
    await bench.ask(kept, pin_ttl_s=LONG_S, session_id=session())
    await bench.ask(conversation(1), release_session=name, pin_ttl_s=LONG_S, session_id=name)
    assert await bench.count("released") == 1 and await bench.count("held") == 2
    await bench.fill()
    assert await bench.cached_blocks(released) == 0
    assert await bench.cached_blocks(kept) == 20


async def test_releasing_an_unknown_session_changes_nothing(bench: Bench) -> None:
    await bench.ask(conversation(1), release_session=session())
    assert await bench.count("released") == 0


async def test_a_longer_turn_replaces_the_pin_of_the_one_before(bench: Bench) -> None:
    first, name = conversation(20), session()
    second = first + conversation(10)
    await bench.ask(first, pin_ttl_s=LONG_S, session_id=name)
    await bench.ask(second, pin_ttl_s=LONG_S, session_id=name)
    await bench.fill()
    assert await bench.cached_blocks(second) == 30
    metrics = await bench.metrics()
    assert (metrics["toolhub_pins"], metrics["toolhub_pinned_blocks"]) == (1, 30)


async def test_two_conversations_share_the_blocks_they_begin_with(bench: Bench) -> None:
    system = conversation(20)
    turns = [system + conversation(10) for _ in range(2)]
    for turn in turns:
        await bench.ask(turn, pin_ttl_s=LONG_S, session_id=session())
    assert (await bench.metrics())["toolhub_pinned_blocks"] == 40
    await bench.fill()
    assert [await bench.cached_blocks(turn) for turn in turns] == [30, 30]


async def test_beyond_the_cap_a_pin_is_refused(bench: Bench) -> None:
    turns = [conversation(20) for _ in range(3)]
    for turn in turns:
        await bench.ask(turn, pin_ttl_s=LONG_S, session_id=session())
    assert (await bench.metrics())["toolhub_pinned_blocks"] == 40 <= CAP
    assert await bench.count("refused") == 1
    await bench.fill()
    assert [await bench.cached_blocks(turn) for turn in turns] == [20, 20, 0]


async def test_pins_yield_to_a_request_that_needs_the_whole_cache(bench: Bench) -> None:
    for _ in range(2):
        await bench.ask(conversation(CAP // 2), pin_ttl_s=LONG_S, session_id=session())
    assert (await bench.metrics())["toolhub_pinned_blocks"] == CAP
    large = conversation(BLOCKS - 1)
    answer = await bench.ask(large)
    assert answer.usage is not None and answer.usage.prompt_tokens == len(large)
    assert await bench.count("yielded") == 2 and await bench.count("preempted") == 0


async def test_the_pin_that_ends_soonest_yields_and_others_stay(bench: Bench) -> None:
    later, sooner = conversation(20), conversation(20)
    await bench.ask(later, pin_ttl_s=LONG_S, session_id=session())
    await bench.ask(sooner, pin_ttl_s=LONG_S / 2, session_id=session())
    await bench.ask(conversation(BLOCKS - 25))
    assert await bench.count("yielded") == 1
    assert await bench.cached_blocks(later) == 20


async def test_pins_yield_before_a_running_request_is_preempted(bench: Bench) -> None:
    for _ in range(2):
        await bench.ask(conversation(CAP // 2), pin_ttl_s=LONG_S, session_id=session())
    await bench.ask(conversation(BLOCKS - CAP - 2), answer=4 * BLOCK)  # fits beside the pins until it is answered
    assert await bench.count("yielded") >= 1 and await bench.count("preempted") == 0


async def test_many_at_once_are_all_served_beside_pins(bench: Bench) -> None:
    async def turns(name: str) -> None:
        prompt = conversation(6)
        for _ in range(4):
            answer = await bench.ask(prompt, answer=BLOCK, pin_ttl_s=LONG_S, session_id=name)
            assert answer.usage is not None and answer.usage.completion_tokens == BLOCK
            prompt += conversation(2)

    async with anyio.create_task_group() as tasks:
        for _ in range(12):
            tasks.start_soon(turns, session())
    assert await bench.count("held") > 0
    assert 0 < (await bench.metrics())["toolhub_pinned_blocks"] <= CAP


async def test_an_answer_that_a_stop_string_ends_is_pinned(bench: Bench) -> None:
    prompt = conversation(20)
    answer = await bench.ask(prompt, answer=200, body={"stop": list("aei ")}, pin_ttl_s=LONG_S, session_id=session())
    assert answer.choices[0].finish_reason == "stop"
    await bench.until("held", 1)
    await bench.fill()
    assert await bench.cached_blocks(prompt) == 20


async def test_an_aborted_request_is_not_pinned(bench: Bench) -> None:
    stream = await bench.client.completions.create(
        model="m",
        prompt=conversation(20),
        max_tokens=2000,
        stream=True,
        extra_body={"ignore_eos": True, "vllm_xargs": {"pin_ttl_s": LONG_S, "session_id": session()}},
    )
    async with stream:
        async for _ in stream:
            break
    await bench.ask(conversation(BLOCKS - 1))  # runs only once the other has given its blocks back
    assert await bench.count("held") == 0


@pytest.mark.parametrize(
    "xargs",
    [
        {"pin_ttl_s": 0},
        {"pin_ttl_s": -5, "session_id": "a"},
        {"pin_ttl_s": "300", "session_id": "a"},
        {"pin_ttl_s": LONG_S, "session_id": "x" * 257},
        {"pin_ttl_s": LONG_S, "session_id": "a\nb"},
        {"session_id": "a"},
        {"release_session": 7},
        {"something": "else"},
    ],
    ids=str,
)
async def test_what_is_no_wish_changes_nothing(bench: Bench, xargs: dict[str, Any]) -> None:
    prompt = conversation(20)
    answer = await bench.ask(prompt, **xargs)
    assert answer.choices[0].finish_reason == "length"
    await bench.fill()
    assert await bench.cached_blocks(prompt) == 0
    assert await bench.count("held") == 0


async def test_the_cache_can_be_emptied_while_pins_are_held(bench: Bench) -> None:
    prompt = conversation(20)
    await bench.ask(prompt, pin_ttl_s=LONG_S, session_id=session())
    assert await bench.reset()
    assert await bench.count("reset") == 1 and (await bench.metrics())["toolhub_pins"] == 0
    assert await bench.cached_blocks(prompt) == 0


async def test_the_engine_says_what_pins_may_take(bench: Bench, pinning: EngineServer) -> None:
    assert f"Pins may hold {CAP} of {BLOCKS} blocks, 600 s at most; counts are in /metrics" in pinning.log.read_text()


def test_it_is_the_kind_of_scheduler_that_the_engine_expects() -> None:
    made = in_engine(
        """
from types import SimpleNamespace
from toolhub_agent.vllm_plugin import PinScheduler
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
for is_async in [True, False]:
    config = SimpleNamespace(scheduler_config=SimpleNamespace(async_scheduling=is_async))
    made = PinScheduler.__new__(PinScheduler, config)
    print(isinstance(made, PinScheduler), isinstance(made, AsyncScheduler))
"""
    )
    assert made.stdout.split() == ["True", "True", "True", "False"]


def test_another_version_is_refused_with_the_way_out() -> None:
    refused = in_engine(
        """
import vllm.version
vllm.version.__version__ = "0.33.1"
from toolhub_agent.vllm_plugin import PinScheduler
"""
    )
    assert refused.returncode == 1
    assert "supports vLLM 0.32, but this is vLLM 0.33.1; install vLLM 0.32, or start the server without" in (
        refused.stderr
    )


def in_engine(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in the engine's environment, where there is no toolhub."""
    return subprocess.run(
        [str(installed().bin / "python"), "-c", program],
        env={"PYTHONPATH": str(AGENT_LOOP), "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
