"""A hub's task as the loop's tools: shapes and texts that the loop's rules look for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from toolhub_agent.tools import HubTools

from toolhub import Hub, parse_config

pytestmark = [pytest.mark.anyio, pytest.mark.quick]

CONFIG = {
    "servers": {
        "clock": {"builtin": "clock"},
        "absent": {"command": "no-such-program-anywhere"},
    }
}


@pytest.fixture
async def tools() -> AsyncIterator[HubTools]:
    async with Hub(parse_config(CONFIG, environ={})) as hub, hub.task("t1") as task:
        yield HubTools(task, timeout=30)


async def test_definitions_have_miroflow_s_shape_and_tell_of_servers_that_cannot_be_reached(tools):
    clock, absent = await tools.get_all_tool_definitions()
    assert clock["name"] == "clock" and {"name", "description", "schema", "annotations"} == set(clock["tools"][0])
    assert [set(tool) for tool in absent["tools"]] == [{"error"}]


async def test_a_result_is_the_text(tools):
    answer = await tools.execute_tool_call("clock", "get_current_time", {"timezone": "UTC"})
    assert (answer["server_name"], answer["tool_name"]) == ("clock", "get_current_time")
    assert "UTC" in answer["result"] and "error" not in answer


async def test_an_unknown_tool_is_a_result_that_takes_the_turn_back(tools):
    answer = await tools.execute_tool_call("clock", "no_such_tool", {})
    assert answer["result"] == "Unknown tool: no_such_tool"


async def test_a_tool_s_own_failure_is_a_result_that_takes_the_turn_back(tools):
    answer = await tools.execute_tool_call("clock", "get_current_time", {"timezone": "Nowhere/Land"})
    assert answer["result"].startswith("Error executing tool get_current_time: ")


async def test_a_server_that_cannot_start_is_an_error_with_its_reason(tools):
    answer = await tools.execute_tool_call("absent", "anything", {})
    assert answer["error"].startswith("Tool call failed: ") and "no-such-program-anywhere" in answer["error"]
