"""`get_all_tool_definitions`: what prompts are made from."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from miroflow_agents import FIXTURES, Make, Params, TaskLog, config, echo_params

from toolhub.miroflow import PROFILES

pytestmark = pytest.mark.anyio

ECHO = {
    "name": "echo",
    "description": "Fixture tool echo",
    "schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


async def test_each_server_has_one_entry_in_the_order_of_the_configs(make: Make) -> None:
    manager = make([config(name, echo_params()) for name in ("b", "a", "c")])
    definitions = await manager.get_all_tool_definitions()
    assert [entry["name"] for entry in definitions] == ["b", "a", "c"]
    assert all(entry["tools"][0] == ECHO for entry in definitions)


async def test_the_order_of_a_schemas_keys_is_the_servers(make: Make) -> None:
    definitions = await make([config("e", echo_params())]).get_all_tool_definitions()
    assert json.dumps(definitions[0]["tools"][0]) == json.dumps(ECHO)


async def test_what_is_returned_belongs_to_the_caller(make: Make) -> None:
    manager = make([config("e", echo_params())])
    first = await manager.get_all_tool_definitions()
    first[0]["tools"][0]["schema"]["properties"].clear()
    first += [{"name": "agent-browsing", "tools": []}]
    second = await manager.get_all_tool_definitions()
    assert [entry["name"] for entry in second] == ["e"]
    assert second[0]["tools"][0] == ECHO


async def test_a_blacklisted_tool_is_not_shown(make: Make) -> None:
    manager = make([config("e", echo_params())], {("e", "echo"), ("other", "sleep")})
    manager.task_log = log = TaskLog()
    (entry,) = await manager.get_all_tool_definitions()
    names = [tool["name"] for tool in entry["tools"]]
    assert "echo" not in names
    assert "sleep" in names
    step = ("info", "ToolManager | Tool Blacklisted", "Tool 'echo' in server 'e' is blacklisted, skipping.", None)
    assert step in log.steps


@pytest.mark.parametrize(
    ("profile", "prefix"),
    [
        ("mirothinker", "Unable to fetch tools: "),
        ("miroflow", "Failed to fetch tools: "),
        ("miroflow-tool", "Failed to fetch tools: "),
    ],
)
async def test_a_server_that_does_not_start_has_one_error_for_tools(make: Make, profile: str, prefix: str) -> None:
    manager = make([config("gone", Params("no-such-program")), config("e", echo_params())], profile=profile)
    gone, working = await manager.get_all_tool_definitions()
    (error,) = gone["tools"]
    assert list(error) == ["error"]
    assert error["error"].startswith(prefix + "server 'gone' did not start: 'no-such-program' not found")
    assert working["tools"][0] == ECHO


async def test_parameters_of_an_unknown_kind_cost_only_their_server(make: Make) -> None:
    manager = make([config("odd", 5), config("bad", {"url": "http://h", "type": "x"}), config("e", echo_params())])
    odd, bad, working = await manager.get_all_tool_definitions()
    assert odd["tools"] == [{"error": "Unable to fetch tools: Unknown server params type for odd: <class 'int'>"}]
    assert "transport" in bad["tools"][0]["error"]
    assert working["tools"][0] == ECHO


async def test_the_steps_are_logged_in_the_known_words(make: Make) -> None:
    manager = make([config("e", echo_params()), config("odd", 5)])
    log = TaskLog()
    manager.set_task_log(log)
    await manager.get_all_tool_definitions()
    assert log.steps[0] == (
        "info",
        "ToolManager | Initialization",
        "ToolManager initialized, loaded servers: ['e', 'odd']",
        None,
    )
    unknown = "Unknown server params type for odd: <class 'int'>"
    assert sorted(log.steps[1:]) == sorted(
        [
            ("info", "ToolManager | Get Tool Definitions", "Getting tool definitions for server 'e'...", None),
            ("info", "ToolManager | Get Tool Definitions", "Getting tool definitions for server 'odd'...", None),
            (
                "error",
                "ToolManager | Unknown Parameter Type",
                "Error: Unknown parameter type for server 'odd': <class 'int'>",
                None,
            ),
            (
                "error",
                "ToolManager | Connection Error",
                f"Error: Unable to connect or get tools from server 'odd': {unknown}",
                None,
            ),
            (
                "info",
                "ToolManager | Tool Definitions Success",
                "Successfully obtained 13 tool definitions from server 'e'.",
                None,
            ),
        ]
    )


@pytest.fixture(params=["sse", "http"])
def remote_url(request: pytest.FixtureRequest) -> Iterator[str]:
    command = [sys.executable, str(FIXTURES / "http_server.py"), "--transport", request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        yield f"http://127.0.0.1:{port}/{'mcp' if request.param == 'http' else 'sse'}"
        child.kill()


async def test_a_remote_server_works_like_a_local_one(make: Make, remote_url: str) -> None:
    manager = make([config("far", remote_url)], {("far", "slow")})
    (entry,) = await manager.get_all_tool_definitions()
    names = [tool["name"] for tool in entry["tools"]]
    assert "echo" in names
    assert "slow" not in names
    answer = await manager.execute_tool_call("far", "echo", {"text": "hi"})
    assert answer == {"server_name": "far", "tool_name": "echo", "result": "hi"}


def test_timeouts_are_those_of_the_variants() -> None:
    assert {name: profile.timeout for name, profile in PROFILES.items()} == {
        "mirothinker": 1200,
        "miroflow": 900,
        "miroflow-tool": 600,
    }
