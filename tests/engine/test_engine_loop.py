"""A whole task on a real engine, through a real hub, with real tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from toolhub_agent.agent import Agent
from toolhub_agent.llm import open_llm
from toolhub_agent.tasklog import TaskLog, read_log
from toolhub_agent.types import Task, TaskResult

from testbed.engine.server import EngineServer
from tests.engine.engine_script import ScriptedLlm
from toolhub import Hub, parse_config
from toolhub.config import AgentSettings, LlmSettings
from toolhub.config.agent import Sampling

pytestmark = pytest.mark.anyio

TURNS = 20
PATIENCE_S = 300
# MiroFlow's own (facts of its TaskLog): what its viewers and its runner read.
KEYS = {
    "status", "start_time", "end_time", "task_id", "input", "ground_truth", "final_boxed_answer", "final_judge_result",
    "judge_type", "eval_details", "error", "current_main_turn_id", "current_sub_agent_turn_id", "sub_agent_counter",
    "current_sub_agent_session_id", "env_info", "log_dir", "main_agent_message_history",
    "sub_agent_message_history_sessions", "step_logs", "trace_data",
}  # fmt: skip


def use(server: str, tool: str, arguments: dict[str, Any]) -> str:
    return (
        f"<use_mcp_tool>\n<server_name>{server}</server_name>\n<tool_name>{tool}</tool_name>\n"
        f"<arguments>\n{json.dumps(arguments)}\n</arguments>\n</use_mcp_tool>"
    )


def script() -> list[str]:
    """Twenty turns over three servers, the last of which answers."""
    turns = [
        use("tool-google-search", "google_search", {"q": "otter"}),
        use("tool-python", "create_sandbox", {}),
        use("clock", "get_current_time", {"timezone": "UTC"}),
    ]
    while len(turns) < TURNS - 1:
        code = f"print({len(turns)} * 7)"
        turns.append(use("tool-python", "run_python_code", {"code_block": code, "sandbox_id": "default"}))
    return [*turns, "Done: \\boxed{sea otter}"]


def tools_config(folder: Path) -> dict[str, Any]:
    (folder / "docs").mkdir()
    (folder / "docs" / "otters.md").write_text("# Otters\nThe sea otter is the heaviest otter.\n")
    search = {"backends": ["local"], "local": {"folder": str(folder / "docs")}}
    return {
        "hub": {"state_dir": str(folder / "state")},
        "servers": {
            "tool-google-search": {"builtin": "google_search", "options": search},
            "tool-python": {"builtin": "python"},
            "clock": {"builtin": "clock"},
        },
    }


async def answered(engine: EngineServer, folder: Path, texts: list[str], **settings: Any) -> tuple[TaskResult, Agent]:
    agent_settings = AgentSettings(max_context_tokens=32_000, sampling=Sampling(max_tokens=400), **settings)
    config = parse_config(tools_config(folder), environ={})
    with anyio.fail_after(PATIENCE_S):
        async with (
            Hub(config) as hub,
            hub.task("t1") as tools,
            open_llm(LlmSettings(endpoints=[engine.openai_url])) as llm,
        ):
            agent = Agent(llm=ScriptedLlm(llm, texts), tools=tools, settings=agent_settings)
            task = Task("t1", "Which otter is the heaviest?", ground_truth="sea otter")
            log = TaskLog.create(folder, "t1", description=task.question, ground_truth="sea otter")
            result = await agent.run(task, log=log)
            log.close()
    return result, agent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


async def test_a_task_of_twenty_turns_runs_on_a_real_engine_with_real_tools(engine: EngineServer, folder: Path):
    result, agent = await answered(engine, folder, script(), keep_tool_result=-1)
    assert (result.status, result.answer, result.turns) == ("success", "sea otter", TURNS)
    assert result.tool_calls == TURNS - 1 and result.rollbacks == 0
    assert result.log is not None
    document = json.loads(result.log.read_text())
    assert set(document) == KEYS and document["status"] == "success"
    history = document["main_agent_message_history"]["message_history"]
    assert [message["role"] for message in history] == ["user", *["assistant", "user"] * (TURNS - 1), "assistant"]
    results = [str(message["content"]) for message in history if message["role"] == "user"][1:]
    assert "sea otter is the heaviest" in results[0] and "UTC" in results[2]
    assert all(f"{number * 7}\\n" in results[number] for number in range(3, TURNS - 1))


async def test_every_turn_but_the_first_finds_most_of_its_prompt_in_the_cache(engine: EngineServer, folder: Path):
    _, agent = await answered(engine, folder, script(), keep_tool_result=-1)
    first, *others = agent.prefix_report().turns
    assert len(others) == TURNS - 1
    for turn in others:
        assert turn.broken_by is None and turn.cached is not None
        assert turn.cached >= turn.reusable - 128 - 1


async def test_the_log_of_a_real_task_can_be_gone_on_with(engine: EngineServer, folder: Path):
    result, _ = await answered(engine, folder, script()[:3] + ["\\boxed{sea otter}"])
    assert result.log is not None
    replay = read_log(result.log.with_suffix(".jsonl"))
    assert replay.is_whole and replay.main.turns == 4
    assert [call.tool for call in replay.main.calls] == ["google_search", "create_sandbox", "get_current_time"]


async def test_native_calls_are_parsed_by_the_engine_and_run(engine: EngineServer, folder: Path):
    called = '<tool_call>\n{"name": "clock-get_current_time", "arguments": {"timezone": "UTC"}}\n</tool_call>'
    result, _ = await answered(engine, folder, [called, "\\boxed{noon}"], protocol="native")
    assert (result.answer, result.tool_calls) == ("noon", 1)
    replay = read_log(result.log.with_suffix(".jsonl")) if result.log else None
    assert replay is not None
    assert [message["role"] for message in replay.main.messages] == ["user", "assistant", "tool", "assistant"]
    assert "UTC" in replay.main.messages[2]["content"]
