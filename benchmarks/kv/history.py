"""What each policy of leaving old tool results out of the prompt costs the engine, in a long conversation.

The history and the view of it are the loop's own. Each turn is one request for one token, so that it shows the prefill
alone; what the model would have written is put into the history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import httpx2
from toolhub_agent.history import ALL, History, ToolResultTrimmer
from toolhub_agent.llm import LlmClient
from toolhub_agent.llm.client import LlmRequest
from toolhub_agent.types import Completion, ToolOutcome

from benchmarks.common.measure import interleaved, median
from benchmarks.common.result import Json
from benchmarks.llm.prompts import Writer, open_writer
from benchmarks.llm.scripted_agent import Served, call_of, call_text, open_side

COMPUTED = "vllm:request_prefill_kv_computed_tokens_sum"
_PATIENCE_S = 300.0


@dataclass(frozen=True)
class HistoryPolicy:
    name: str
    keep: int
    stride: int = 0


EXACT, STRIDE, APPEND = HistoryPolicy("exact", 5), HistoryPolicy("stride", 5, 5), HistoryPolicy("append", ALL)


@dataclass(frozen=True)
class Talk:
    """A conversation, in tokens. longest: of a prompt. The conversation ends when the next prompt would be longer."""

    turns: int = 50
    system: int = 800
    result: int = 1000
    longest: int = 32_000


async def measure_keep(served: Served, talk: Talk, rounds: int) -> dict[str, list[Json]]:
    """Measure rounds of exact and stride in turns, and one of append-only. See `_converse` for the results."""
    found: dict[str, list[Json]] = {}
    async with (
        httpx2.AsyncClient(timeout=_PATIENCE_S, trust_env=False) as http,
        open_side(served) as side,
    ):
        writer = await open_writer(http, served)
        for _, policy in interleaved((EXACT, STRIDE), rounds - 1):
            found.setdefault(policy.name, []).append(await _converse(side.llm, http, served, writer, policy, talk))
        found[APPEND.name] = [await _converse(side.llm, http, served, writer, APPEND, talk)]
    return found


async def _converse(
    llm: LlmClient, http: httpx2.AsyncClient, served: Served, writer: Writer, policy: HistoryPolicy, talk: Talk
) -> Json:
    """``{"turns", "sent", "computed", "uncached", "total_s", "turn_s", "longest"}``.

    computed: prefill tokens as the engine counts them, None if it does not; uncached: sent minus cached.
    """
    history = History(writer.fresh(talk.system))
    history.append_user("What is it?")
    keep = ToolResultTrimmer(policy.keep, policy.stride)
    before = await read_metric(http, served, COMPUTED)
    turns: list[Completion] = []
    while len(turns) < talk.turns and not (turns and turns[-1].usage.prompt_tokens + talk.result > talk.longest):
        number = len(turns)
        body = {"max_tokens": 1}
        turns.append(await llm.complete(LlmRequest("talk", keep.view(history.messages()).messages, body)))
        query = f"question {number}"
        history.append_assistant(Completion(text=call_text(query)))
        history.append_results([ToolOutcome(call_of(0, query), writer.fresh(talk.result))])
    after = await read_metric(http, served, COMPUTED)
    sent = sum(turn.usage.prompt_tokens for turn in turns)
    return {
        "turns": len(turns),
        "sent": sent,
        "computed": None if before is None or after is None else after - before,
        "uncached": sent - sum(turn.usage.cached_tokens or 0 for turn in turns),
        "total_s": sum(turn.seconds for turn in turns),
        "turn_s": median([turn.seconds for turn in turns]),
        "longest": max(turn.usage.prompt_tokens for turn in turns),
    }


async def read_metric(http: httpx2.AsyncClient, served: Served, name: str) -> float | None:
    """The sum of a metric over its labels; None where the server has none of that name."""
    answer = await http.get(f"{served.root}/metrics")
    return metric_in(answer.text, name) if answer.status_code == 200 else None


def metric_in(text: str, name: str) -> float | None:
    lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines) if lines else None


def computed_of(told: Mapping[str, float]) -> float:
    """The engine's own count where it has one."""
    return told["uncached"] if told["computed"] is None else told["computed"]
