"""Several calls of one turn: independent ones side by side, the others in their order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any

import anyio

from toolhub.miroflow.params import PLAYWRIGHT
from toolhub.model import Json

Execute = Callable[[str, str, Any], Awaitable[Json]]
Results = list[tuple[Any, Json]]

# Their calls build on each other: one page, one plan.
_IN_ORDER = frozenset({PLAYWRIGHT, "task_planner"})
_LONGEST_RESULT = 100_000
_CUT = "\n... [Result truncated]"


async def execute_in_groups(tool_calls: Sequence[Json], execute: Execute) -> Results:
    """Return (id, result) for every call, in the order of the calls."""
    results: list[Json] = [{} for _ in tool_calls]
    failures: list[Exception] = []

    async def run(numbers: list[int]) -> None:
        for number in numbers:
            call = tool_calls[number]
            try:
                results[number] = await execute(call["server_name"], call["tool_name"], call["arguments"])
            except Exception as exc:  # only a strict manager raises; kept out of the group, which would wrap it
                failures.append(exc)

    async with anyio.create_task_group() as running:
        for group in ordered_groups(tool_calls):
            running.start_soon(run, group)
    if failures:
        raise failures[0]
    return [(call["id"], result) for call, result in zip(tool_calls, results, strict=True)]


def ordered_groups(tool_calls: Sequence[Json]) -> list[list[int]]:
    """Return the calls' numbers, those that must keep their order together."""
    found: dict[Hashable, list[int]] = {}
    for number, call in enumerate(tool_calls):
        found.setdefault(_group_key(number, call), []).append(number)
    return list(found.values())


def _group_key(number: int, call: Json) -> Hashable:
    server, arguments = call["server_name"], call["arguments"]
    if server in _IN_ORDER:
        return str(server)
    sandbox = arguments.get("sandbox_id") if isinstance(arguments, dict) else None
    return (server, sandbox) if isinstance(sandbox, str) else number


def formatted(result: Json) -> Json:
    """A result as the content block that goes into the next message."""
    server, tool = result["server_name"], result["tool_name"]
    if "error" in result:
        text = f"Tool call to {tool} on {server} failed. Error: {result['error']}"
    elif "result" in result:
        text = result["result"]
        if len(text) > _LONGEST_RESULT:
            text = text[:_LONGEST_RESULT] + _CUT
    else:
        text = f"Tool call to {tool} on {server} completed, but produced no specific output or result."
    return {"type": "text", "text": text}
