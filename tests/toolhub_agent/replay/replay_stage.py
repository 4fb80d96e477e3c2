"""Logs as the loop itself writes them, of an agent that says what a test tells it to; its tools are a real hub's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolhub_agent.events import AgentCallbacks, NoCallbacks
from toolhub_agent.replay.player import play
from toolhub_agent.replay.recording import PlaybackPace, RecordedAnswer, RecordedConversation, ReplayLlm, Trajectory
from toolhub_agent.tasklog import MAIN, TaskLog
from toolhub_agent.types import TaskResult, Usage

from toolhub.config import Config, parse_config

CLOCK = {"clock": {"builtin": "clock", "share": "hub"}}
AT_ONCE = PlaybackPace(0, 0)


def config_in(folder: Path, **agent: Any) -> Config:
    return parse_config({"hub": {"state_dir": str(folder / "state")}, "servers": CLOCK, "agent": agent})


def say(text: str, **fields: Any) -> RecordedAnswer:
    return RecordedAnswer(text, usage=Usage(100, 10, 50), ttft=0.01, seconds=0.02, **fields)


def script(
    main: Sequence[RecordedAnswer | str], others: Mapping[str, tuple[str, Sequence[str]]] | None = None, **fields: Any
) -> Trajectory:
    """others: a sub-agent's conversation -> its subtask and what it says."""
    said = tuple(answer if isinstance(answer, RecordedAnswer) else say(answer) for answer in main)
    rest = [RecordedConversation(name, task, tuple(map(say, texts))) for name, (task, texts) in (others or {}).items()]
    return Trajectory("t", "What time is it?", (RecordedConversation(MAIN, "", said), *rest), **fields)


async def perform(
    trajectory: Trajectory, config: Config, folder: Path, *, viewer: AgentCallbacks | None = None
) -> tuple[TaskResult, Path]:
    """Play it at once; returns the result and the log that the loop wrote of it."""
    log = TaskLog.create(folder / "logs", "t", description=trajectory.question)
    try:
        llm = ReplayLlm(trajectory, AT_ONCE)
        return await play(trajectory, llm, config, viewer or NoCallbacks(), log), log.path
    finally:
        log.close()


def call_clock(timezone: str = "UTC") -> str:
    return call("clock", "get_current_time", f'{{"timezone": "{timezone}"}}')


def call(server: str, tool: str, arguments: str) -> str:
    return (
        f"<use_mcp_tool><server_name>{server}</server_name><tool_name>{tool}</tool_name>"
        f"<arguments>{arguments}</arguments></use_mcp_tool>"
    )
