"""The agent: one task from its question to its answer.

`Agent.run` makes one or more attempts. An attempt is a conversation of the main agent. Each sub-agent call is a
conversation of its own. An attempt that runs out of turns or context without an answer is discarded while retries are
left (`discard_retries`). The last attempt is always asked for its answer.
"""

from __future__ import annotations

import datetime
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import cast
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from toolhub.config import AgentSettings, LlmSettings, SubAgentSettings
from toolhub_agent import prompts
from toolhub_agent.errors import AnswerUnreadable, ContextTooLong, LlmError, LlmRefused
from toolhub_agent.events import AgentCallbacks, AgentReporter, NoCallbacks, StreamEvents
from toolhub_agent.history import History
from toolhub_agent.kv_hints.hinter import Hinter, open_hints
from toolhub_agent.kv_hints.signals import HintSink, NullHints
from toolhub_agent.llm import LlmClient, open_llm
from toolhub_agent.llm.transport import session_headers
from toolhub_agent.prefix_report import PrefixReport
from toolhub_agent.prompts import system_prompt
from toolhub_agent.tasklog import MAIN, TaskLog, TaskRecord
from toolhub_agent.tool_calls.catalog import SUB_AGENT_PREFIX, ToolCatalog
from toolhub_agent.tools import HubTask, HubTools, ToolExecutor, ToolSource
from toolhub_agent.turn import AskedQueries, ChatModel, Conversation, ConversationDeps, TurnResult
from toolhub_agent.types import Json, StopReason, Task, TaskResult, Usage, add_usage

# --- The boxed answer -------------------------------------------------------------------------------------------------
# Finds the answer in a text: the last `\boxed{...}` with content.

NO_ANSWER = "No \\boxed{} content found in the final answer."
"""Replaces an answer that is missing. Evaluation runners compare with it."""

_OPENING = "\\boxed{"
# What models write into the box when they have no answer.
_PLACEHOLDERS = frozenset({"?", "??", "???", "？", "…", "……", "...", "unknown"})


def boxed_contents(text: str) -> list[str]:
    """Every boxed content in order, with matched braces. A box that is never closed is left out."""
    found = []
    start = text.find(_OPENING)
    while start >= 0:
        begin = start + len(_OPENING)
        end = _closing_brace(text, begin)
        if end < 0:
            break  # no later box can be closed either
        found.append(text[begin:end].strip())
        start = text.find(_OPENING, end)
    return found


def boxed_answer(text: str) -> str | None:
    """The last boxed content that is an answer; None if there is none."""
    answers = [content for content in boxed_contents(text) if content and content.lower() not in _PLACEHOLDERS]
    return answers[-1] if answers else None


def _closing_brace(text: str, begin: int) -> int:
    depth = 1
    for place in range(begin, len(text)):
        if text[place] == "{":
            depth += 1
        elif text[place] == "}":
            depth -= 1
            if depth == 0:
                return place
    return -1


# --- Tools and system prompt ------------------------------------------------------------------------------------------
# What an agent starts with: the tools that it may use, its system prompt, its conversation.

SUB_AGENT_TOOL = "search_and_browse"


def definitions_for(definitions: Iterable[Json], servers: Sequence[str] | None) -> list[Json]:
    """The definitions of the named servers, in their original order; of all servers if `servers` is None."""
    return [entry for entry in definitions if servers is None or entry["name"] in servers]


def sub_agent_definitions(sub_agents: Mapping[str, SubAgentSettings]) -> list[Json]:
    """Sub-agents as the main agent sees them: each is a server with one tool."""
    return [
        {
            "name": SUB_AGENT_PREFIX + name,
            "tools": [
                {
                    "name": SUB_AGENT_TOOL,
                    "description": settings.description,
                    "schema": {
                        "properties": {"subtask": {"title": "Subtask", "type": "string"}},
                        "required": ["subtask"],
                        "title": f"{SUB_AGENT_TOOL}Arguments",
                        "type": "object",
                    },
                }
            ],
        }
        for name, settings in sub_agents.items()
    ]


def catalog_for(definitions: Iterable[Json], settings: AgentSettings) -> ToolCatalog:
    return ToolCatalog.of(definitions, read_only=settings.read_only_tools, hidden=settings.hidden_tools)


def system_prompt_for(catalog: ToolCatalog, settings: AgentSettings, objective: str, date: datetime.date) -> str:
    """date: the task's start, the same for all of its conversations."""
    return system_prompt(
        catalog,
        date=date,
        objective=objective,
        protocol=settings.protocol,
        parallel=settings.ask_for_parallel_calls,
    )


# --- The loop ---------------------------------------------------------------------------------------------------------
# Runs turns until the agent has finished or must stop. Then it asks for the final answer.

# Turns that were rolled back do not count as turns, but they are bounded: MiroFlow's number.
_MAX_ROLLED_BACK = 200
# LLM failures in a row. Each was already retried for as long as `llm.total_timeout_s` allows.
_MAX_FAILURES = 3

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoopResult:
    """How far an agent got. answers: its boxed answers so far. error: the fault that stopped it, if any."""

    stopped: StopReason
    turns: int
    tool_calls: int
    answers: tuple[str, ...] = ()
    error: str | None = None


class AgentLoop:
    """Runs one conversation. Make a new one for a fresh start."""

    def __init__(
        self,
        conversation: Conversation,
        reporter: AgentReporter,
        *,
        max_turns: int,
        final_request: str,
        pause: float,
    ) -> None:
        """final_request: the request for the answer; the context must have room for it. pause: after a failure."""
        self.conversation = conversation
        self._reporter = reporter
        self._max_turns = max_turns
        self._final_request = final_request
        self._pause = pause
        self._answers: list[str] = []
        self._tool_calls = 0
        self._failures = 0
        self._error: str | None = None

    @property
    def usage(self) -> Usage:
        total = Usage()
        for usage in self.conversation.usage:
            total = add_usage(total, usage)
        return total

    async def work(self) -> LoopResult:
        """Take turns until the model has finished or must stop. Raises nothing except cancellation."""
        stopped = await self._take_turns()
        turns = self.conversation.history.turns
        return LoopResult(stopped, turns, self._tool_calls, tuple(self._answers), self._error)

    async def _take_turns(self) -> StopReason:
        for _ in range(self._max_turns + _MAX_ROLLED_BACK):
            if self.conversation.history.turns >= self._max_turns:
                return "max_turns"
            stopped = await self._take_turn()
            if stopped is not None:
                return stopped
        return "no_progress"

    async def _take_turn(self) -> StopReason | None:
        try:
            turn = await self.conversation.take_turn()
        except ContextTooLong as exc:
            self._error = str(exc)
            self.conversation.history.pop_turn()  # makes room for the request for an answer
            return "context"
        except (LlmError, AnswerUnreadable) as exc:
            return await self._note_failure(exc)
        self._failures, self._error = 0, None
        await self._reporter.answered(self.conversation.history.turns, turn.completion, turn.rolled_back)
        return self._judge(turn)

    def _judge(self, turn: TurnResult) -> StopReason | None:
        if turn.completion is not None and (answer := boxed_answer(turn.completion.text)) is not None:
            self._answers.append(answer)
        if turn.rolled_back is not None:
            logger.info("%s: turn rolled back: %s", self.conversation.session, turn.rolled_back)
            return None
        self._tool_calls += len(turn.outcomes)
        if turn.is_last:
            return "answered"
        if not self.conversation.fits(self._final_request):
            self.conversation.history.pop_turn()
            return "context"
        return None

    async def _note_failure(self, exc: Exception) -> StopReason | None:
        self._failures += 1
        self._error = str(exc)
        logger.warning("%s: no answer from the model: %s", self.conversation.session, exc)
        if isinstance(exc, LlmRefused) or self._failures >= _MAX_FAILURES:
            return "llm_failed"
        await anyio.sleep(self._pause)
        return None

    async def final_answer(self, *, attempts: int, boxed: bool) -> str:
        """Ask for the final text, again if its box is missing; "" if the model cannot be reached."""
        text = ""
        for _ in range(attempts):
            try:
                completion = await self.conversation.answer(self._final_request)
            except (LlmError, AnswerUnreadable) as exc:
                self._error = str(exc)
                logger.warning("%s: no final answer: %s", self.conversation.session, exc)
                continue
            text = completion.text
            await self._reporter.answered(self.conversation.history.turns, completion, None)
            if not boxed or boxed_answer(text) is not None:
                break
            self.conversation.history.pop_turn()
            self.conversation.history.pop_results()
        return text


# --- Sub-agents -------------------------------------------------------------------------------------------------------
# The main agent calls sub-agents like tools. Each call is a conversation of its own, which ends with a report.

NO_REPORT = "The sub-agent could not be asked for its report."


class SubAgents:
    """Runs the sub-agents of one task. usage: the sum over all of them so far."""

    def __init__(
        self,
        llm: ChatModel,
        settings: AgentSettings,
        hints: HintSink,
        callbacks: AgentCallbacks,
        tools: ToolSource,
        definitions: list[Json],
        *,
        log: TaskLog,
        events: StreamEvents,
        session: str,
        date: datetime.date,
    ) -> None:
        """definitions: of all servers; each sub-agent gets those of its servers. session: of the main agent."""
        self.usage = Usage()
        self._llm = llm
        self._settings = settings
        self._hints = hints
        self._callbacks = callbacks
        self._tools = tools
        self._definitions = definitions
        self._log = log
        self._events = events
        self._session = session
        self._date = date

    async def run(self, server: str, subtask: str) -> str:
        """Run a subtask and return the report. Raises ValueError for an unknown sub-agent."""
        settings = self._settings.sub_agents.get(server.removeprefix(SUB_AGENT_PREFIX))
        if settings is None:
            raise ValueError(f"there is no agent {server!r}")
        if not subtask.strip():
            raise ValueError("the argument 'subtask' is missing")
        name = self._log.sub_agent_started(server, subtask)
        loop = self._loop(name, server, settings.servers, settings.max_turns, subtask)
        try:
            async with AgentReporter(server, self._events, self._callbacks).working():
                await loop.work()
                return await loop.final_answer(attempts=self._settings.answer_attempts, boxed=False) or NO_REPORT
        finally:
            self.usage = add_usage(self.usage, loop.usage)
            loop.conversation.close()
            self._log.sub_agent_ended(name, server)

    def _loop(self, name: str, server: str, servers: list[str], max_turns: int, subtask: str) -> AgentLoop:
        catalog = catalog_for(definitions_for(self._definitions, servers), self._settings)
        system = system_prompt_for(catalog, self._settings, prompts.SUB_AGENT_OBJECTIVE, self._date)
        journal = self._log.conversation(name, system)
        history = History(
            system, protocol=self._settings.protocol, result_chars=self._settings.result_chars, journal=journal
        )
        history.append_user(subtask)
        reporter = AgentReporter(server, self._events, self._callbacks)
        executor = ToolExecutor(self._tools, timeout=self._settings.tool_timeout_s)
        conversation_deps = ConversationDeps(
            session=f"{self._session}-{name}-{uuid.uuid4().hex[:8]}",
            llm=self._llm,
            catalog=catalog,
            settings=self._settings,
            history=history,
            journal=journal,
            execute=executor,
            prefetch=executor.prefetch,
            hints=self._hints,
            reporter=reporter,
            parent=self._session,
        )
        return AgentLoop(
            Conversation(conversation_deps),
            reporter,
            max_turns=max_turns,
            final_request=prompts.report_request(subtask),
            pause=self._settings.pause_after_failure_s,
        )


# --- The agent --------------------------------------------------------------------------------------------------------

# Stops after which another attempt may do better.
_RETRYABLE_STOPS = ("max_turns", "context", "no_progress")


@dataclass(frozen=True)
class AgentDeps:
    """What an agent uses while it runs. today: called once per task."""

    llm: ChatModel
    settings: AgentSettings
    hints: HintSink
    callbacks: AgentCallbacks
    today: Callable[[], datetime.date]


class Agent:
    """Answers tasks with one set of tools.

    async with Hub(load_config("hub.yaml")) as hub, hub.task("t1") as task:
        result = await Agent(llm="http://127.0.0.1:8000/v1", tools=task).run("Who wrote Middlemarch?")
        print(result.answer)
    """

    def __init__(
        self,
        *,
        llm: str | LlmSettings | ChatModel,
        tools: HubTask | ToolSource,
        settings: AgentSettings | None = None,
        hints: HintSink | None = None,
        callbacks: AgentCallbacks | None = None,
        today: Callable[[], datetime.date] = datetime.date.today,
    ) -> None:
        """llm: a model server's address, the settings of several, or an open client (`open_llm`).

        tools: a task of a hub, or any object with MiroFlow's two ToolManager methods. hints: receives signals about the
        KV cache. None: they go to the model servers as the settings in `llm` say, and nowhere if `llm` is an open
        client. callbacks: called while the agent works, for a live view. today: the date in the system prompt.
        """
        self._llm = _llm_settings(llm) if isinstance(llm, str) else llm
        self._settings = settings or AgentSettings()
        self._tools = _tool_source(tools, self._settings)
        self._hints = hints
        self._callbacks = callbacks or NoCallbacks()
        self._today = today
        self._prefix = PrefixReport()

    def prefix_report(self) -> PrefixReport:
        """How much of each prompt in the main agent's last attempt was reusable, and what broke the prefix."""
        return self._prefix

    async def run(
        self,
        task: Task | str,
        *,
        log: TaskLog | None = None,
        events: StreamEvents | None = None,
        resume_from: TaskRecord | None = None,
    ) -> TaskResult:
        """Answer one task. log: where its turns are written; the caller closes it. None: no log.

        resume_from: the content of `log` when it was resumed; the task continues from there. Faults of the model and of
        tools are in the result. Raises the tools' exception if they cannot be listed.
        """
        if isinstance(task, str):
            task = Task(f"task-{uuid.uuid4().hex[:8]}", task)
        log, events = log or TaskLog.unwritten(), events or StreamEvents()
        began = anyio.current_time()
        workflow = await events.start_of_workflow(task.question)
        try:
            async with self._open() as deps:
                run = _TaskRun(deps, self._tools, task, log, events, resume_from)
                result = await run.result()
            self._prefix = run.prefix
        except Exception as exc:
            await events.show_error(str(exc) or repr(exc))
            log.finished("failed", NO_ANSWER, error=str(exc) or repr(exc))
            raise
        log.finished(
            result.status,
            result.answer,
            summary=result.summary,
            error=result.error or "",
            turns=result.turns,
            tool_calls=result.tool_calls,
        )
        await events.end_of_workflow(workflow)
        await events.end()
        document = await anyio.to_thread.run_sync(log.write_miroflow)
        return replace(result, seconds=anyio.current_time() - began, log=document or log.path)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[AgentDeps]:
        if not isinstance(self._llm, LlmSettings):
            yield AgentDeps(self._llm, self._settings, self._hints or NullHints(), self._callbacks, self._today)
            return
        async with open_model_servers(self._llm) as (llm, hints):
            yield AgentDeps(llm, self._settings, self._hints or hints, self._callbacks, self._today)


@asynccontextmanager
async def open_model_servers(settings: LlmSettings) -> AsyncIterator[tuple[LlmClient, Hinter]]:
    """Open a client of the configured model servers and their hints. It sends nothing before the first request."""
    async with (
        open_llm(settings) as llm,
        open_hints(
            settings.hints,
            engine=settings.engine,
            http=llm.raw,
            headers_of=session_headers,
            load_of=llm.pool.load,
            may_prefetch=llm.pool.admission.may_hint,
        ) as hints,
    ):
        yield llm, hints


def with_api_version(url: str) -> str:
    """The URL with `/v1` added if it has no path: every engine has its API there."""
    return url.rstrip("/") + "/v1" if not urlsplit(url).path.strip("/") else url


def _llm_settings(url: str) -> LlmSettings:
    return LlmSettings(endpoints=[with_api_version(url)])


def _tool_source(tools: HubTask | ToolSource, settings: AgentSettings) -> ToolSource:
    if hasattr(tools, "get_all_tool_definitions"):
        return cast(ToolSource, tools)
    return HubTools(tools, timeout=settings.tool_timeout_s)


class _TaskRun:
    """One running task."""

    def __init__(
        self,
        deps: AgentDeps,
        tools: ToolSource,
        task: Task,
        log: TaskLog,
        events: StreamEvents,
        resume_from: TaskRecord | None,
    ) -> None:
        self._deps = deps
        self._settings = deps.settings
        self._tools = tools
        self._task = task
        self._log = log
        self._events = events
        self._record = resume_from
        self._date = deps.today()
        self._reporter = AgentReporter(MAIN, events, deps.callbacks)
        self._final_request = prompts.final_answer_request(task, boxed=self._settings.boxed_answer)
        self._sub_agents: SubAgents | None = None
        self.prefix = PrefixReport()
        self._usage = resume_from.usage if resume_from is not None else Usage()
        self._fresh_starts = len(resume_from.attempts) if resume_from is not None else 0
        self._rollbacks = 0

    async def result(self) -> TaskResult:
        definitions = await self._tools.get_all_tool_definitions()
        while True:
            is_last = self._fresh_starts >= self._settings.discard_retries
            result = await self._attempt(definitions, is_last=is_last)
            if result is not None:
                return result
            self._log.attempt_ended(self._fresh_starts + 1, "no answer within its limits")
            self._fresh_starts += 1
            self._record = None

    async def _attempt(self, definitions: Iterable[Json], *, is_last: bool) -> TaskResult | None:
        loop = self._loop(list(definitions))
        try:
            async with self._reporter.working():
                result = await loop.work()
                if result.stopped in _RETRYABLE_STOPS and not is_last:
                    return None
                text = await self._final_text(loop, result)
        finally:
            self._usage = add_usage(self._usage, loop.usage)
            self._rollbacks += loop.conversation.rollbacks.total
            self.prefix = loop.conversation.prefix
            loop.conversation.close()
        return self._judged(result, text)

    async def _final_text(self, loop: AgentLoop, result: LoopResult) -> str:
        """The answer that the model gave itself if it is complete; otherwise ask for it."""
        last = loop.conversation.history.messages()[-1]
        if result.stopped == "answered" and (not self._settings.boxed_answer or boxed_answer(str(last["content"]))):
            return str(last["content"])
        if result.stopped == "llm_failed":
            return ""
        return await loop.final_answer(attempts=self._settings.answer_attempts, boxed=self._settings.boxed_answer)

    def _judged(self, result: LoopResult, text: str) -> TaskResult:
        answer = boxed_answer(text) if self._settings.boxed_answer else (text.strip() or None)
        if answer is None and result.answers:
            answer = result.answers[-1]
        return TaskResult(
            task=self._task,
            status="success" if answer is not None else "failed",
            answer=answer if answer is not None else NO_ANSWER,
            summary=text,
            stopped=result.stopped,
            turns=result.turns,
            tool_calls=result.tool_calls,
            rollbacks=self._rollbacks,
            fresh_starts=self._fresh_starts,
            usage=add_usage(self._usage, self._sub_agents.usage) if self._sub_agents else self._usage,
            error=result.error,
        )

    # --- set-up -----------------------------------------------------------------------------------------------------

    def _loop(self, definitions: list[Json]) -> AgentLoop:
        own = definitions_for(definitions, self._settings.servers)
        catalog = catalog_for([*own, *sub_agent_definitions(self._settings.sub_agents)], self._settings)
        session = f"{self._task.id}-{uuid.uuid4()}"
        self._sub_agents = SubAgents(
            self._deps.llm,
            self._settings,
            self._deps.hints,
            self._deps.callbacks,
            self._tools,
            definitions,
            log=self._log,
            events=self._events,
            session=session,
            date=self._date,
        )
        executor = ToolExecutor(self._tools, timeout=self._settings.tool_timeout_s, run_sub_agent=self._sub_agents.run)
        objective = self._settings.system_prompt or prompts.MAIN_OBJECTIVE
        history, asked = self._history(system_prompt_for(catalog, self._settings, objective, self._date))
        conversation_deps = ConversationDeps(
            session=session,
            llm=self._deps.llm,
            catalog=catalog,
            settings=self._settings,
            history=history,
            journal=self._log.continued(MAIN),
            execute=executor,
            prefetch=executor.prefetch,
            hints=self._deps.hints,
            reporter=self._reporter,
            asked=asked,
        )
        return AgentLoop(
            Conversation(conversation_deps),
            self._reporter,
            max_turns=self._settings.max_turns,
            final_request=self._final_request,
            pause=self._settings.pause_after_failure_s,
        )

    def _history(self, system: str) -> tuple[History, AskedQueries]:
        """A new conversation, or the logged one without its incomplete last turn."""
        asked = AskedQueries()
        settings = self._settings
        before = self._record.main if self._record is not None else None
        resumes = before is not None and bool(before.messages)
        if before is not None and resumes:
            system = before.system  # it holds the date of the task's first start
        history = History(
            system,
            protocol=settings.protocol,
            result_chars=settings.result_chars,
            journal=self._log.continued(MAIN) if resumes else self._log.conversation(MAIN, system),
            restored=before.messages if before is not None else (),
        )
        if before is None or not resumes:
            history.append_user(prompts.task_message(self._task, boxed=settings.boxed_answer))
            return history, asked
        if before.is_mid_turn:
            history.pop_turn()
        for call in before.calls:
            asked.note(call)
        return history, asked
