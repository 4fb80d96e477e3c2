"""Several calls of one turn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from miroflow_agents import Make, config, echo_params, tool_params

from toolhub.miroflow import PROFILES, ToolManager
from toolhub.miroflow.batch import ordered_groups

pytestmark = pytest.mark.anyio


def call(number: int, server: str, tool: str, **arguments: Any) -> dict[str, Any]:
    return {"id": f"c{number}", "server_name": server, "tool_name": tool, "arguments": arguments}


async def test_independent_calls_run_at_the_same_time_and_keep_their_order(
    manager: ToolManager, tmp_path: Path
) -> None:
    meeting = {"path": str(tmp_path / "arrivals"), "count": 2}
    calls = [
        call(1, "tools", "meet", **meeting),
        call(2, "tools", "meet", **meeting),
        call(3, "echo", "echo", text="x"),
    ]
    results, exceeded = await manager.execute_tool_calls_batch(calls)
    assert [(call_id, result["result"]) for call_id, result in results] == [("c1", "met"), ("c2", "met"), ("c3", "x")]
    assert not exceeded


async def test_calls_beyond_the_limit_are_left_out(manager: ToolManager) -> None:
    calls = tuple(call(number, "echo", "echo", text=str(number)) for number in range(4))
    results, exceeded = await manager.execute_tool_calls_batch(calls, max_tool_calls=3)
    assert [call_id for call_id, _ in results] == ["c0", "c1", "c2"]
    assert exceeded


async def test_a_failing_call_does_not_disturb_the_others(manager: ToolManager) -> None:
    calls = [call(1, "nope", "t"), call(2, "echo", "echo", text="x")]
    results, _ = await manager.execute_tool_calls_batch(calls)
    assert [sorted(result)[0] for _, result in results] == ["error", "result"]


async def test_a_strict_manager_raises_the_plain_timeout(make: Make) -> None:
    profile = replace(PROFILES["mirothinker"], timeout=0.3)
    manager = make([config("echo", echo_params()), config("t", tool_params())], profile=profile, strict=True)
    with pytest.raises(TimeoutError):
        await manager.execute_tool_calls_batch([call(1, "echo", "sleep", seconds=60)])


def test_calls_that_build_on_each_other_share_a_lane() -> None:
    calls = [
        call(0, "playwright", "open"),
        call(1, "tool-python", "run", sandbox_id="a"),
        call(2, "search", "google"),
        call(3, "playwright", "click"),
        call(4, "tool-python", "run", sandbox_id="b"),
        call(5, "tool-python", "run", sandbox_id="a"),
        call(6, "search", "google"),
    ]
    assert ordered_groups(calls) == [[0, 3], [1, 5], [2], [4], [6]]


def test_results_become_text_for_the_next_message() -> None:
    names = {"server_name": "s", "tool_name": "t"}
    results = [
        (1, names | {"result": "fine"}),
        (2, names | {"error": "broken"}),
        (3, names),
        (4, names | {"result": "x" * 100_001}),
    ]
    texts = [block["text"] for _, block in ToolManager([]).format_tool_results(results)]
    assert texts == [
        "fine",
        "Tool call to t on s failed. Error: broken",
        "Tool call to t on s completed, but produced no specific output or result.",
        "x" * 100_000 + "\n... [Result truncated]",
    ]
