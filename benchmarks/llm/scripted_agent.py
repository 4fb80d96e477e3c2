"""The real agent loop and engine with prescribed answers.

A random model calls no tools by itself. So every request carries the text of its answer as the only one allowed
(structured outputs); the engine prefills and decodes as ever. The script comes in where hints do, at `engine_fields`.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio
from toolhub_agent.agent import Agent
from toolhub_agent.kv_hints.hinter import Hinter, open_hints
from toolhub_agent.kv_hints.signals import HintSink, Signal
from toolhub_agent.llm import LlmClient, open_llm
from toolhub_agent.llm.client import LlmRequest
from toolhub_agent.llm.transport import session_headers
from toolhub_agent.tasklog import TaskLog
from toolhub_agent.tools import ToolSource
from toolhub_agent.types import Completion, EngineFields, Task, TaskResult, ToolCall

from benchmarks.common.result import Json
from toolhub.config import AgentSettings, HintSettings, LlmSettings

EngineKind = Literal["vllm", "sglang"]
SERVER, TOOL = "web", "search"
# A request never waits longer; the largest prefill here takes some seconds.
_PATIENCE_S = 300.0
# Enough for the longest scripted turn, whatever small tokens a random model writes it with.
_ANSWER_TOKENS = 1500


@dataclass(frozen=True)
class Served:
    """A model server. url: its OpenAI API, ending in /v1."""

    url: str
    model: str = "m"
    kind: EngineKind = "vllm"
    key: str | None = None

    @property
    def root(self) -> str:
        return self.url.removesuffix("/v1")

    def settings(self, hints: HintSettings | None = None, **more: Any) -> LlmSettings:
        """Settings of a client that does not try again: a failure must not count as slow."""
        return LlmSettings.model_validate(
            {
                "endpoints": [self.url],
                "model": self.model,
                "api_key": self.key,
                "attempts": 1,
                "attempt_timeout_s": _PATIENCE_S,
                "total_timeout_s": _PATIENCE_S,
                "hints": hints or HintSettings(mode="off"),
                **more,
            }
        )

    def only(self, text: str) -> Json:
        """The fields that let the model write this text and nothing else.

        At temperature 0 it also writes it with the same tokens each time, of the many that spell it.
        """
        if self.kind == "sglang":
            return {"regex": re.escape(text)}
        return {"structured_outputs": {"choice": [text]}}


def call_text(query: str, *, server: str = SERVER, tool: str = TOOL, name: str = "q") -> str:
    """A call in MiroFlow's XML."""
    return called(server, tool, {name: query})


def called(server: str, tool: str, arguments: Mapping[str, Any]) -> str:
    return (
        f"<use_mcp_tool>\n<server_name>{server}</server_name>\n<tool_name>{tool}</tool_name>\n"
        f"<arguments>\n{json.dumps(dict(arguments))}\n</arguments>\n</use_mcp_tool>"
    )


class ScriptedHints:
    """A `HintSink` that says what each request's answer is and passes the rest on to real hints.

    first: more fields of the first request's body.
    """

    def __init__(self, served: Served, answers: Sequence[str], hints: HintSink, first: Mapping[str, Any]) -> None:
        self._served = served
        self._answers = list(answers)
        self._hints = hints
        self._first = dict(first)
        self._asked = 0

    def signal(self, signal: Signal) -> None:
        self._hints.signal(signal)

    def engine_fields(self, session: str, endpoint: str) -> EngineFields:
        found = self._hints.engine_fields(session, endpoint)
        number, self._asked = self._asked, self._asked + 1
        answer = self._answers[min(number, len(self._answers) - 1)]
        more = self._first if number == 0 else {}
        return EngineFields(found.headers, {**found.body, **self._served.only(answer), **more})


class TimedTools:
    """A read-only search that takes a fixed time. begun: is called with the query when a call begins."""

    def __init__(self, seconds: float, text: str) -> None:
        self.seconds = seconds
        self.executions = 0
        self._text = text

    async def get_all_tool_definitions(self) -> list[Json]:
        schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
        tool = {"name": TOOL, "description": "Searches.", "schema": schema, "annotations": {"readOnlyHint": True}}
        return [{"name": SERVER, "tools": [tool]}]

    async def execute_tool_call(self, server_name: str, tool_name: str, arguments: Json) -> Json:
        self.executions += 1
        await anyio.sleep(self.seconds)
        return {"server_name": server_name, "tool_name": tool_name, "result": self._text}


class Meanwhile:
    """Wraps tools: something else happens during their calls, such as others' requests."""

    def __init__(self, tools: ToolSource, happens: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tools = tools
        self._happens = happens

    async def get_all_tool_definitions(self) -> list[Json]:
        return await self._tools.get_all_tool_definitions()

    async def execute_tool_call(self, server_name: str, tool_name: str, arguments: Json) -> Json:
        async with anyio.create_task_group() as group:
            group.start_soon(self._happens)
            return await self._tools.execute_tool_call(server_name, tool_name, arguments)
        raise AssertionError("a task group does not swallow errors")


@dataclass
class Side:
    """A client of a model server with its hints, as `toolhub run` has it. turns: every answer, by session."""

    served: Served
    llm: LlmClient
    hints: Hinter
    turns: dict[str, list[Completion]] = field(default_factory=dict)

    def note(self, request: LlmRequest, completion: Completion) -> None:
        self.turns.setdefault(request.session, []).append(completion)

    def of_task(self, task: str) -> list[Completion]:
        """The answers that a task's main agent got."""
        return [turn for session, turns in self.turns.items() if session.startswith(f"{task}-") for turn in turns]


@asynccontextmanager
async def open_side(served: Served, hints: HintSettings | None = None, **more: Any) -> AsyncIterator[Side]:
    """Open a client with its hints. more: fields of `LlmSettings`."""
    settings = served.settings(hints, **more)
    async with AsyncExitStack() as stack:
        llm = await stack.enter_async_context(open_llm(settings))
        hinter = await stack.enter_async_context(
            open_hints(
                settings.hints,
                engine="auto",
                http=llm.raw,
                headers_of=session_headers,
                load_of=llm.pool.load,
            )
        )
        side = Side(served, llm, hinter)
        llm.on_turn.append(side.note)
        yield side


@dataclass(frozen=True)
class Play:
    """One task of the agent: its system prompt, what the model says turn by turn, its tools."""

    task: str
    system: str
    answers: Sequence[str]
    tools: ToolSource
    first: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """More of `AgentSettings`."""
    folder: Path | None = None
    """The folder of its log; None: a temporary one."""


async def play(side: Side, piece: Play) -> TaskResult:
    """Run the agent to its end. Raises RuntimeError if it did not go as the script says."""
    settings = AgentSettings.model_validate(
        {
            "system_prompt": piece.system,
            "max_turns": len(piece.answers),
            "boxed_answer": False,
            "max_context_tokens": 1_000_000,
            "sampling": {"temperature": 0.0, "top_p": None, "max_tokens": _ANSWER_TOKENS},
            "max_rollbacks": 0,
            **piece.settings,
        }
    )
    sink = ScriptedHints(side.served, piece.answers, side.hints, piece.first)
    agent = Agent(llm=side.llm, tools=piece.tools, settings=settings, hints=sink)
    with tempfile.TemporaryDirectory() as scratch:
        log = TaskLog.create(piece.folder or Path(scratch), piece.task, description="a scripted task")
        try:
            result = await agent.run(Task(piece.task, "What is it?"), log=log)
        finally:
            log.close()
    if result.stopped != "answered" or result.turns != len(piece.answers):
        raise RuntimeError(f"{piece.task} ended after {result.turns} turns: {result.stopped}, {result.error}")
    return result


def call_of(index: int, query: str) -> ToolCall:
    return ToolCall(index, SERVER, TOOL, {"q": query})
