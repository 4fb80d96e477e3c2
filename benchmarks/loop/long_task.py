"""One long task of the loop through a hub with real tools: what each turn costs at the engine and beside it."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx2
from toolhub_agent.tools import HubTools
from toolhub_agent.types import Completion

from benchmarks.common.measure import median
from benchmarks.common.result import Json, hub_config
from benchmarks.common.subprocess_worker import Worker
from benchmarks.llm.prompts import open_writer
from benchmarks.llm.scripted_agent import Play, Served, called, open_side, play
from benchmarks.loop.many_agents import BUILTIN, SERVER, TOOL
from toolhub import Hub
from toolhub.config import HintSettings

_LAST_WORD = "That is all."
_PATIENCE_S = 300.0
PYTHON, CLOCK = "tool-python", "clock"


@dataclass(frozen=True)
class LongTask:
    """One task. system: tokens of its prompt without the tools' descriptions. answer_s: seconds of each search."""

    turns: int = 15
    system: int = 1500
    answer_s: float = 0.4
    keep: int = 5
    stride: int = 5


def script(turns: int) -> list[str]:
    """Return the answers: a search, some code, the time, and so on; then the last word."""
    kinds = (
        lambda at: called(SERVER, TOOL, {"q": f"question {at}"}),
        lambda at: called(PYTHON, "run_python_code", {"code_block": f"print(sum(range({at} * 1000)))"}),
        lambda at: called(CLOCK, "get_current_time", {"timezone": f"Etc/GMT+{at % 12}"}),
    )
    return [*(kinds[at % len(kinds)](at) for at in range(turns - 1)), _LAST_WORD]


async def measure_task(served: Served, task: LongTask, rounds: int) -> list[Json]:
    """Run the task in rounds. Return for each the medians of TTFT and seconds, the tokens, and the tools' time."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(timeout=_PATIENCE_S, trust_env=False))
        writer = await open_writer(http, served)
        service = stack.enter_context(
            Worker("benchmarks.common.search_endpoint:open_endpoint", {"answer_s": task.answer_s})
        )
        url = f"http://127.0.0.1:{service.ask({})['port']}"
        return [await _run(served, task, writer.fresh(task.system), url) for _ in range(rounds)]


async def _run(served: Served, task: LongTask, objective: str, search_url: str) -> Json:
    name = f"long{uuid.uuid4().hex[:8]}"
    settings = {"keep_tool_result": task.keep, "trim_every": task.stride}
    with tempfile.TemporaryDirectory() as folder:
        config = hub_config(_servers(search_url), Path(folder))
        async with Hub(config) as hub, open_side(served, HintSettings()) as side:
            hub.observers.append(side.hints.durations)
            async with hub.task(name) as tools:
                piece = Play(name, objective, script(task.turns), HubTools(tools), settings=settings)
                result = await play(side, piece)
            return {"wall_s": result.seconds, "tool_calls": result.tool_calls, **summary(side.of_task(name))}


def _servers(search_url: str) -> dict[str, Json]:
    return {
        SERVER: {
            "builtin": BUILTIN,
            "share": "hub",
            "options": {"serper": {"api_key": "none", "base_url": search_url}},
            "tools": {"deny": ["sogou_search"], "policy": {TOOL: {"read_only": True}}},
        },
        PYTHON: {"builtin": "python"},
        CLOCK: {"builtin": "clock"},
    }


def summary(turns: Sequence[Completion]) -> Json:
    """Sum up one conversation. cached_share: of the prompt tokens of all turns but the first, which no cache has."""
    later = turns[1:]
    sent = sum(turn.usage.prompt_tokens for turn in later)
    engine_s = sum(turn.seconds for turn in turns)
    return {
        "turns": len(turns),
        "first_ttft_s": turns[0].ttft,
        "ttft_s": median([turn.ttft for turn in later]),
        "turn_s": median([turn.seconds for turn in later]),
        "engine_s": engine_s,
        "prompt": sum(turn.usage.prompt_tokens for turn in turns),
        "cached_share": sum(turn.usage.cached_tokens or 0 for turn in later) / sent,
        "longest": max(turn.usage.prompt_tokens for turn in turns),
    }
