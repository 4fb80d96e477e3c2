"""MiroFlow's profile sends a call with a wrong server to the one that has the tool."""

from __future__ import annotations

import pytest
from miroflow_agents import Make, Params, config, echo_params, tool_params

pytestmark = pytest.mark.anyio


async def test_a_wrong_server_is_corrected_when_only_one_has_the_tool(make: Make) -> None:
    manager = make([config("e", echo_params()), config("t", tool_params())], profile="miroflow")
    assert await manager.execute_tool_call("wrong", "echo", {"text": "hi"}) == {
        "server_name": "e",
        "tool_name": "echo",
        "result": (
            "[Auto-corrected: Server 'wrong' not found, but tool 'echo' was found only in server 'e', "
            "so automatically used 'e' instead] hi"
        ),
    }


async def test_a_corrected_call_may_fail_too(make: Make) -> None:
    manager = make([config("e", echo_params())], profile="miroflow")
    answer = await manager.execute_tool_call("wrong", "die", {})
    assert answer["error"].startswith("[Auto-corrected: Server 'wrong' not found, but tool 'die'")
    assert "OUTCOME UNKNOWN" in answer["error"]


async def test_several_owners_are_named(make: Make) -> None:
    configs = [config("e", echo_params()), config("f", echo_params()), config("gone", Params("no-such-program"))]
    answer = await make(configs, profile="miroflow").execute_tool_call("wrong", "echo", {})
    assert answer["error"].startswith("Server 'wrong' not found. However, found tool 'echo' in these servers: e, f.")


async def test_a_hidden_tool_does_not_count(make: Make) -> None:
    configs = [config("e", echo_params()), config("f", echo_params())]
    manager = make(configs, {("f", "echo")}, profile="miroflow")
    assert (await manager.execute_tool_call("wrong", "echo", {"text": "hi"}))["server_name"] == "e"


async def test_when_nobody_has_the_tool_the_names_may_be_mixed_up(make: Make) -> None:
    answer = await make([config("e", echo_params())], profile="miroflow").execute_tool_call("wrong", "nope", {})
    assert answer["error"].startswith("Server 'wrong' not found. ")
    assert "mixed up" in answer["error"]


async def test_a_tool_called_on_the_wrong_server_is_called_on_the_right_one(make: Make) -> None:
    manager = make([config("e", echo_params()), config("t", tool_params())], profile="miroflow")
    answer = await manager.execute_tool_call("t", "echo", {"text": "hi"})
    assert answer == {"server_name": "e", "tool_name": "echo", "result": "hi"}


async def test_a_tool_that_nobody_has_stays_unknown(make: Make) -> None:
    manager = make([config("e", echo_params())], profile="miroflow")
    assert (await manager.execute_tool_call("e", "nope", {}))["result"] == "Unknown tool: nope"
