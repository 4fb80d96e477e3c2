"""`execute_tool_call`: what agent loops get, literally."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from miroflow_agents import Make, Params, TaskLog, config, echo_params, tool_params
from real_processes import eventually

import toolhub
from toolhub.miroflow import PROFILES, ToolManager
from toolhub.miroflow.hub_command import hub_commands
from toolhub.miroflow.private_hub import private_hubs

pytestmark = pytest.mark.anyio
HF_TEXT = (
    "You are trying to scrape a Hugging Face dataset for answers, please do not use the scrape tool for this purpose."
)
DATASET = "https://huggingface.co/datasets/answers"


async def outcome(manager: ToolManager, server: str, tool: str, arguments: Any = None) -> dict[str, Any]:
    """What a call adds to the names it was made with."""
    answer = await manager.execute_tool_call(server, tool, arguments)
    assert (answer.pop("server_name"), answer.pop("tool_name")) == (server, tool)
    return answer


async def test_positional_and_keyword_calls_are_the_same(manager: ToolManager) -> None:
    expected = {"server_name": "echo", "tool_name": "echo", "result": "hi"}
    assert await manager.execute_tool_call("echo", "echo", {"text": "hi"}) == expected
    keywords: dict[str, Any] = {"server_name": "echo", "tool_name": "echo", "arguments": {"text": "hi"}}
    assert await manager.execute_tool_call(**keywords) == expected


async def test_a_process_serves_many_calls(manager: ToolManager) -> None:
    assert [await outcome(manager, "echo", "counter") for _ in range(3)] == [
        {"result": "1"},
        {"result": "2"},
        {"result": "3"},
    ]


@pytest.mark.parametrize(
    ("kinds", "text"),
    [(["first", "last"], "last"), (["first", "image"], "first"), (["image"], ""), ([], ""), (["empty"], "")],
)
async def test_the_result_is_always_text(manager: ToolManager, kinds: list[str], text: str) -> None:
    assert await outcome(manager, "tools", "blocks", {"kinds": kinds}) == {"result": text}


async def test_what_the_tool_says_against_the_call_is_a_result(manager: ToolManager) -> None:
    assert await outcome(manager, "echo", "nope") == {"result": "Unknown tool: nope"}
    assert await outcome(manager, "tools", "error", {"text": "Error calling tool 'error': kaboom"}) == {
        "result": "Error executing tool error: kaboom"
    }
    missing = await outcome(manager, "echo", "echo", {})
    assert missing["result"].startswith("Error executing tool echo: ")


async def test_legacy_errors_pass_through(make: Make) -> None:
    manager = make([config("tools", tool_params())], legacy_errors=True)
    text = "Error calling tool 'error': kaboom"
    assert await outcome(manager, "tools", "error", {"text": text}) == {"result": text}


async def test_a_server_that_is_not_configured(manager: ToolManager, log: TaskLog) -> None:
    assert await outcome(manager, "nope", "t") == {"error": "Server 'nope' not found."}
    message = "Error: Attempting to call server 'nope' not found"
    assert log.steps == [("error", "ToolManager | Server Not Found", message, None)]


async def test_a_good_call_logs_its_start_and_its_success(manager: ToolManager, log: TaskLog) -> None:
    await outcome(manager, "echo", "echo", {"text": "hi"})
    assert log.steps == [
        (
            "info",
            "ToolManager | Tool Call Start",
            "Connecting to server 'echo' to call tool 'echo'",
            {"arguments": {"text": "hi"}},
        ),
        (
            "info",
            "ToolManager | Tool Call Success",
            "Tool 'echo' (server: 'echo') called successfully.",
            None,
        ),
    ]


async def test_a_server_that_dies_in_a_call_leaves_the_outcome_open(manager: ToolManager, log: TaskLog) -> None:
    answer = await outcome(manager, "echo", "die", {"code": 3})
    assert answer["error"].startswith("Tool execution failed: OUTCOME UNKNOWN")
    assert "exited with 3" in answer["error"]
    level, step, message, _ = log.steps[-1]
    assert (level, step) == ("error", "ToolManager | Tool Execution Error")
    assert message == "Tool execution error: " + answer["error"].removeprefix("Tool execution failed: ")
    assert "result" in await outcome(manager, "echo", "pid")


async def test_a_death_between_calls_goes_unnoticed(manager: ToolManager) -> None:
    pid = int((await outcome(manager, "echo", "pid"))["result"])
    os.kill(pid, signal.SIGKILL)
    async with toolhub.connect(private_hubs.url(hub_commands())) as hub:
        with anyio.fail_after(30):
            while f"'pid': {pid}," in str(await hub.statistics()):
                await anyio.lowlevel.checkpoint()
    assert int((await outcome(manager, "echo", "pid"))["result"]) != pid


async def test_a_program_that_is_missing_fails_the_call(make: Make) -> None:
    manager = make([config("gone", Params("no-such-program"))])
    manager.task_log = log = TaskLog()
    answer = await outcome(manager, "gone", "t")
    assert answer["error"].startswith("Tool call failed: server 'gone' did not start: 'no-such-program' not found")
    level, step, message, _ = log.steps[-1]
    assert (level, step) == ("error", "ToolManager | Tool Call Failed")
    reason = answer["error"].removeprefix("Tool call failed: ")
    assert message == f"Error: Failed to call tool 't' (server: 'gone'): {reason}"


async def test_parameters_of_an_unknown_kind_fail_the_call(make: Make) -> None:
    answer = await outcome(make([config("odd", 5)]), "odd", "t")
    assert answer == {"error": "Tool call failed: Unknown server params type for odd: <class 'int'>"}


async def test_a_protocol_error_is_a_failed_execution(manager: ToolManager) -> None:
    assert await outcome(manager, "tools", "refuse") == {"error": "Tool execution failed: internal trouble"}


@pytest.mark.parametrize("arguments", ["text", 5, ["x"]])
async def test_arguments_that_are_no_object_fail_the_execution(manager: ToolManager, arguments: Any) -> None:
    kind = type(arguments).__name__
    expected = {"error": f"Tool execution failed: arguments must be an object, not {kind}"}
    assert await outcome(manager, "echo", "echo", arguments) == expected


async def test_a_timeout_is_an_error_that_names_the_seconds(make: Make) -> None:
    manager = make([config("echo", echo_params())], profile=replace(PROFILES["mirothinker"], timeout=0.3))
    answer = await outcome(manager, "echo", "sleep", {"seconds": 60})
    assert answer["error"].startswith("Tool execution failed: OUTCOME UNKNOWN")
    assert "did not answer within 0.3 s" in answer["error"]


async def test_a_strict_manager_raises_the_timeout(make: Make) -> None:
    profile = replace(PROFILES["mirothinker"], timeout=0.3)
    manager = make([config("echo", echo_params())], profile=profile, strict=True)
    with pytest.raises(asyncio.TimeoutError, match=r"0\.3 s"):
        await manager.execute_tool_call("echo", "sleep", {"seconds": 60})


async def test_cancelling_reaches_the_server(make: Make, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    manager = make([config("echo", echo_params(LEDGER=str(ledger), LEDGER_DELAY="60"))])
    call = asyncio.create_task(manager.execute_tool_call("echo", "ledger", {"key": "x"}))
    with anyio.fail_after(20):
        await eventually(ledger.exists, within=15)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually(lambda: "cancelled" in ledger.read_text())


async def test_a_blacklisted_tool_can_be_called_unless_that_is_forbidden(make: Make) -> None:
    blacklist = {("echo", "echo")}
    open_manager = make([config("echo", echo_params())], blacklist)
    assert await outcome(open_manager, "echo", "echo", {"text": "hi"}) == {"result": "hi"}
    closed_manager = make([config("echo", echo_params())], blacklist, enforce_blacklist=True)
    assert await outcome(closed_manager, "echo", "echo", {"text": "hi"}) == {
        "error": "Tool call failed: Tool 'echo' in server 'echo' is blacklisted"
    }


@pytest.mark.parametrize(
    ("profile", "blocked"),
    [("mirothinker", {"scrape", "scrape_website"}), ("miroflow", {"scrape"}), ("miroflow-tool", {"scrape"})],
)
async def test_datasets_with_answers_are_refused_before_paying(
    make: Make, tmp_path: Path, profile: str, blocked: set[str]
) -> None:
    calls = tmp_path / "calls"
    manager = make([config("tools", tool_params(CALLS=str(calls)))], profile=profile)
    for tool in ("scrape", "scrape_website"):
        assert await outcome(manager, "tools", tool, {"url": "https://example.org"}) == {"result": "page"}
        expected = HF_TEXT if tool in blocked else "page"
        assert await outcome(manager, "tools", tool, {"url": DATASET}) == {"result": expected}
    assert calls.read_text().count(DATASET) == 2 - len(blocked)


def test_the_dataset_rule_can_be_asked() -> None:
    manager = ToolManager([])
    assert manager._is_huggingface_dataset_or_space_url("https://huggingface.co/spaces/x")
    assert not manager._is_huggingface_dataset_or_space_url("https://huggingface.co/models/x")
    assert not manager._is_huggingface_dataset_or_space_url(None)
    assert manager._should_block_hf_scraping("scrape", {"url": DATASET})
    assert not manager._should_block_hf_scraping("google_search", {"url": DATASET})


async def test_the_browser_keeps_its_state_and_says_when_it_is_lost(make: Make) -> None:
    manager = make([config("playwright", echo_params())])
    manager.task_log = log = TaskLog()
    assert await outcome(manager, "playwright", "counter") == {"result": "1"}
    assert await outcome(manager, "playwright", "counter") == {"result": "2"}
    answer = await outcome(manager, "playwright", "die")
    assert answer["error"].startswith("Tool call failed: ")
    assert {step for _, step, _, _ in log.steps} == {"ToolManager | Tool Call Start"}


async def test_the_browser_answers_with_its_first_block(make: Make) -> None:
    manager = make([config("playwright", tool_params())])
    assert await outcome(manager, "playwright", "blocks", {"kinds": ["first", "last"]}) == {"result": "first"}


def fake_markitdown(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    """MarkItDown as far as it is used; without a text it fails."""

    class MarkItDown:
        text_content = text

        def __init__(self, docintel_endpoint: str) -> None:
            assert docintel_endpoint == "<document_intelligence_endpoint>"

        def convert(self, url: str) -> MarkItDown:
            if self.text_content is None:
                raise OSError("no network")
            return self

    module = ModuleType("markitdown")
    module.MarkItDown = MarkItDown  # type: ignore[attr-defined]  # a module made by hand
    module.__spec__ = sys.__spec__
    monkeypatch.setitem(sys.modules, "markitdown", module)


async def test_a_hopeless_scrape_is_tried_with_markitdown(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_markitdown(monkeypatch, "# Page")
    manager = make([config("tools", tool_params(MODE="dies"))])
    manager.task_log = log = TaskLog()
    assert await outcome(manager, "tools", "scrape", {"url": "https://example.org"}) == {"result": "# Page"}
    assert log.steps[-2:] == [
        ("info", "ToolManager | Fallback Attempt", "Attempting fallback using MarkItDown...", None),
        ("info", "ToolManager | Fallback Success", "MarkItDown fallback successful", None),
    ]


async def test_a_failed_fallback_leaves_the_first_error(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_markitdown(monkeypatch, None)
    manager = make([config("tools", tool_params(MODE="dies"))])
    manager.task_log = log = TaskLog()
    answer = await outcome(manager, "tools", "scrape", {"url": "https://example.org"})
    assert answer["error"].startswith("Tool call failed: server 'tools' did not start")
    assert log.steps[-1] == ("error", "ToolManager | Fallback Failed", "Fallback also failed: no network", None)


async def test_without_markitdown_there_is_no_fallback(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    answer = await outcome(make([config("tools", tool_params(MODE="dies"))]), "tools", "scrape", {"url": "x"})
    assert "unhandled errors" in answer["error"]
