"""The wall time of a turn whose calls start while the model writes, or after it. With an engine's own stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import anyio
from toolhub_agent.llm.client import LlmRequest
from toolhub_agent.tool_calls import CallFinished, CallStarted, Dispatcher
from toolhub_agent.tool_calls.catalog import ToolCatalog
from toolhub_agent.tool_calls.dispatcher import CallEvent
from toolhub_agent.types import ToolCall

from benchmarks.common.measure import interleaved
from benchmarks.common.result import Json
from benchmarks.llm.scripted_agent import Served, Side, TimedTools, call_text, open_side

Starts = Literal["one by one", "together", "streaming"]
VARIANTS: tuple[Starts, ...] = ("one by one", "together", "streaming")


@dataclass(frozen=True)
class WrittenTurn:
    """What the model writes in one turn: calls that take `tool_s` each, then some words."""

    name: str
    tool_s: Sequence[float]
    words: int = 0

    @property
    def text(self) -> str:
        calls = [call_text(f"question {index}") for index in range(len(self.tool_s))]
        behind = " ".join(["and"] * self.words)
        return "\n".join([*calls, behind] if behind else calls)


TURNS = (
    WrittenTurn("1 call, nothing behind it", (0.6,)),
    WrittenTurn("1 call, 60 words behind it", (0.6,), words=60),
    WrittenTurn("4 calls of 0.6 s", (0.6,) * 4),
    WrittenTurn("4 calls, the first of 1.5 s, the others 0.3 s", (1.5, 0.3, 0.3, 0.3)),
)


async def measure_dispatch(
    served: Served, turns: Sequence[WrittenTurn], rounds: int
) -> dict[str, dict[str, list[Json]]]:
    """Take turns through the variants. Return the rounds by turn and variant: ``{"wall_s", "stream_s", "early"}``."""
    found: dict[str, dict[str, list[Json]]] = {}
    async with open_side(served) as side:
        catalog = ToolCatalog.of(await TimedTools(0, "").get_all_tool_definitions())
        for turn in turns:
            for _, variant in interleaved(VARIANTS, rounds - 1):
                told = await _take(side, catalog, turn, variant)
                found.setdefault(turn.name, {}).setdefault(variant, []).append(told)
    return found


async def _take(side: Side, catalog: ToolCatalog, turn: WrittenTurn, variant: Starts) -> Json:
    """Take one turn. Raises RuntimeError if the calls were not those of the script."""
    early: list[ToolCall] = []

    async def execute(call: ToolCall) -> str:
        await anyio.sleep(turn.tool_s[call.index])
        return "found"

    began = anyio.current_time()
    async with Dispatcher(
        execute,
        catalog,
        eager="read_only" if variant == "streaming" else "none",
        parallel=1 if variant == "one by one" else len(turn.tool_s),
        on_event=_noting(early),
    ) as dispatcher:
        body = {"max_tokens": 2000, "temperature": 0, **side.served.only(turn.text)}
        messages = [{"role": "user", "content": "What is it?"}]
        async with side.llm.stream(LlmRequest("dispatch", messages, body)) as stream:
            async for delta in stream:
                dispatcher.feed(delta)
        streamed = anyio.current_time() - began
        calls = await dispatcher.finish()
        outcomes = [outcome async for outcome in dispatcher.results()]
    wall = anyio.current_time() - began
    if len(calls.calls) != len(turn.tool_s) or any(outcome.is_error for outcome in outcomes):
        raise RuntimeError(f"{turn.name}: the calls are not those that were written")
    return {"wall_s": wall, "stream_s": streamed, "early": len(early)}


def _noting(early: list[ToolCall]) -> Callable[[CallEvent], None]:
    def note(event: CallEvent) -> None:
        match event:
            case CallStarted(call=call, early=True):
                early.append(call)
            case CallStarted() | CallFinished():
                pass

    return note
