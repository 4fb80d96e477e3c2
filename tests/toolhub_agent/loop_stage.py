"""An agent on a stage: a real model server that is told what to say, and tools that note what they are asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import anyio
from llm_stand_in.model_server import ModelServer
from toolhub_agent.agent import Agent
from toolhub_agent.events import StreamEvents
from toolhub_agent.kv_hints.signals import NullHints, Signal
from toolhub_agent.llm import open_llm
from toolhub_agent.tasklog import TaskLog, TaskRecord
from toolhub_agent.types import Task, TaskResult

from toolhub.config import AgentSettings, LlmSettings

Answering = Callable[[dict[str, Any]], Awaitable[Any]]
SEARCH = {
    "name": "google_search",
    "description": "Searches.",
    "schema": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    "annotations": {"readOnlyHint": True},
}
RUN = {
    "name": "run_python_code",
    "description": "Runs code.",
    "schema": {"type": "object", "properties": {"code_block": {"type": "string"}}, "required": ["code_block"]},
    "annotations": {},
}


class NotingTools:
    """A `ToolSource` of two servers. Set `answers[tool]` to a text, an exception, or a coroutine function."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.finished: list[str] = []
        self.answers: dict[str, Any] = {}

    async def get_all_tool_definitions(self) -> list[dict[str, Any]]:
        return [
            {"name": "search", "tools": [SEARCH]},
            {"name": "python", "tools": [RUN]},
            {"name": "down", "tools": [{"error": "Unable to fetch tools: gone"}]},
        ]

    async def execute_tool_call(self, server_name: str, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.calls.append((server_name, tool_name, arguments))
        answer = self.answers.get(tool_name, f"{tool_name} of {json.dumps(arguments)}")
        if callable(answer):
            answer = await answer(arguments)
        self.finished.append(tool_name)
        if isinstance(answer, Exception):
            raise answer
        about = {"server_name": server_name, "tool_name": tool_name}
        return {**about, **(answer if isinstance(answer, Mapping) else {"result": answer})}


class NotingHints(NullHints):
    def __init__(self) -> None:
        self.signals: list[Signal] = []

    def signal(self, signal: Signal) -> None:
        self.signals.append(signal)


class NotingSink:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def put(self, item: Any) -> None:
        self.events.append(item)


@dataclass
class LoopStage:
    """What a test looks at when the agent has run."""

    server: ModelServer
    folder: Path
    tools: NotingTools = field(default_factory=NotingTools)
    hints: NotingHints = field(default_factory=NotingHints)
    sink: NotingSink = field(default_factory=NotingSink)
    settings: dict[str, Any] = field(default_factory=dict)
    log: TaskLog | None = None

    async def run(
        self, question: str = "Who?", *, log: TaskLog | None = None, resume_from: TaskRecord | None = None
    ) -> TaskResult:
        with anyio.fail_after(30):
            async with self.agent() as agent:
                self.log = log or TaskLog.create(self.folder, "t1", description=question)
                events = StreamEvents(self.sink)
                return await agent.run(Task("t1", question), log=self.log, events=events, resume_from=resume_from)

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        settings = AgentSettings(**{"pause_after_failure_s": 0, **self.settings})
        llm_settings = LlmSettings(endpoints=[self.server.url], attempts=1, total_timeout_s=10)
        async with open_llm(llm_settings) as llm:
            yield Agent(
                llm=llm, tools=self.tools, settings=settings, hints=self.hints, today=lambda: date(2026, 11, 20)
            )

    @property
    def prompts(self) -> list[list[dict[str, Any]]]:
        """The messages of every request the model got."""
        return [seen.body["messages"] for seen in self.server.chats]


def use(tool: str, arguments: Any, *, server: str = "search") -> str:
    """A tool call in MiroFlow's XML."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return (
        f"<use_mcp_tool>\n<server_name>{server}</server_name>\n<tool_name>{tool}</tool_name>\n"
        f"<arguments>\n{written}\n</arguments>\n</use_mcp_tool>"
    )


def search(query: str) -> str:
    return use("google_search", {"q": query})
