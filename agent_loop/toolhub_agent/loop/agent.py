"""The agent: one task from its question to its answer.

`Agent.run` makes one or more attempts. An attempt is a conversation of the main agent; sub-agents have conversations of
their own. An attempt that ran out of turns or context without an answer is thrown away whole while fresh starts are
left (`discard_retries`); the last one is asked for its answer whatever happened.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import anyio
import anyio.to_thread

from toolhub.config import AgentSettings
from toolhub_agent.context.history import History
from toolhub_agent.context.prefix import PrefixReport
from toolhub_agent.kv_hints.signals import HintSink, NullHints
from toolhub_agent.loop import prompts
from toolhub_agent.loop.answer import NO_ANSWER, boxed_answer
from toolhub_agent.loop.conversation import Conversation, Parts
from toolhub_agent.loop.duplicates import AskedQueries
from toolhub_agent.loop.executor import Executor
from toolhub_agent.loop.model_access import ModelAccess
from toolhub_agent.loop.setup import catalog_of, definitions_for, prompt_of, sub_agent_definitions
from toolhub_agent.loop.subagents import SubAgents
from toolhub_agent.loop.task import Task, TaskResult
from toolhub_agent.loop.watch import LoopWatch, NoViewer, Viewer
from toolhub_agent.loop.worker import Work, Worker
from toolhub_agent.model import Json, Usage, added
from toolhub_agent.tasklog import MAIN, Replay, StreamEvents, TaskLog
from toolhub_agent.tools import ToolSource

# Stops after which another attempt may do better.
_WORTH_ANOTHER = ("max_turns", "context", "no_progress")


@dataclass(frozen=True)
class Surroundings:
    """What an agent works with, the same for all its tasks. today: asked once per task."""

    llm: ModelAccess
    settings: AgentSettings
    hints: HintSink = field(default_factory=NullHints)
    viewer: Viewer = field(default_factory=NoViewer)
    today: Callable[[], datetime.date] = datetime.date.today


class Agent:
    """Answers tasks with one set of tools.

    agent = Agent(Surroundings(llm, settings), HubTools(task))
    result = await agent.run(Task("t1", "Who ...?"), log=TaskLog.create(folder, "t1", description="..."))
    """

    def __init__(self, surroundings: Surroundings, tools: ToolSource) -> None:
        self._around = surroundings
        self._settings = surroundings.settings
        self._tools = tools
        self._prefix = PrefixReport()

    def prefix_report(self) -> PrefixReport:
        """What of each prompt of the main agent's last attempt was reusable, and what broke it."""
        return self._prefix

    async def run(
        self, task: Task, *, log: TaskLog, events: StreamEvents | None = None, replay: Replay | None = None
    ) -> TaskResult:
        """Answer one task. replay: what `log` said when it was resumed; the task goes on from there.

        Raises nothing but cancellation: what goes wrong is in the result.
        """
        events = events or StreamEvents()
        run = _Run(self._around, self._tools, task, log, events, replay)
        began = anyio.current_time()
        workflow = await events.start_of_workflow(task.question)
        try:
            result = await run.result()
            self._prefix = run.prefix
        except Exception as exc:
            await events.show_error(str(exc) or repr(exc))
            log.finished("failed", NO_ANSWER, error=str(exc) or repr(exc))
            raise
        log.finished(result.status, result.answer, summary=result.summary, error=result.error or "")
        await events.end_of_workflow(workflow)
        await events.end()
        document = await anyio.to_thread.run_sync(log.write_miroflow)
        return replace(result, seconds=anyio.current_time() - began, log=document or log.path)


class _Run:
    """One task under way."""

    def __init__(
        self,
        around: Surroundings,
        tools: ToolSource,
        task: Task,
        log: TaskLog,
        events: StreamEvents,
        replay: Replay | None,
    ) -> None:
        self._around = around
        self._settings = around.settings
        self._tools = tools
        self._task = task
        self._log = log
        self._events = events
        self._replay = replay
        self._date = around.today()
        self._watch = LoopWatch(MAIN, events, around.viewer)
        self._final_request = prompts.final_answer(task, boxed=self._settings.boxed_answer)
        self._sub_agents: SubAgents | None = None
        self.prefix = PrefixReport()
        self._usage = replay.usage if replay is not None else Usage()
        self._fresh_starts = len(replay.attempts) if replay is not None else 0
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
            self._replay = None

    async def _attempt(self, definitions: Iterable[Json], *, is_last: bool) -> TaskResult | None:
        worker = self._worker(list(definitions))
        try:
            async with self._watch.working():
                work = await worker.work()
                if work.stopped in _WORTH_ANOTHER and not is_last:
                    return None
                text = await self._final_text(worker, work)
        finally:
            self._usage = added(self._usage, worker.usage)
            self._rollbacks += worker.conversation.rollbacks.total
            self.prefix = worker.conversation.prefix
            worker.conversation.close()
        return self._judged(work, text)

    async def _final_text(self, worker: Worker, work: Work) -> str:
        """The answer the model gave by itself if it is complete, else the one it is asked for."""
        last = worker.conversation.history.messages()[-1]
        if work.stopped == "answered" and (not self._settings.boxed_answer or boxed_answer(str(last["content"]))):
            return str(last["content"])
        if work.stopped == "llm_failed":
            return ""
        return await worker.last_word(attempts=self._settings.answer_attempts, boxed=self._settings.boxed_answer)

    def _judged(self, work: Work, text: str) -> TaskResult:
        answer = boxed_answer(text) if self._settings.boxed_answer else (text.strip() or None)
        if answer is None and work.answers:
            answer = work.answers[-1]
        return TaskResult(
            task=self._task,
            status="success" if answer is not None else "failed",
            answer=answer if answer is not None else NO_ANSWER,
            summary=text,
            stopped=work.stopped,
            turns=work.turns,
            tool_calls=work.tool_calls,
            rollbacks=self._rollbacks,
            fresh_starts=self._fresh_starts,
            usage=added(self._usage, self._sub_agents.usage) if self._sub_agents else self._usage,
            error=work.error,
        )

    # --- setting up -------------------------------------------------------------------------------------------------

    def _worker(self, definitions: list[Json]) -> Worker:
        own = definitions_for(definitions, self._settings.servers)
        catalog = catalog_of([*own, *sub_agent_definitions(self._settings.sub_agents)], self._settings)
        session = f"{self._task.id}-{uuid.uuid4()}"
        self._sub_agents = SubAgents(
            self._around.llm,
            self._settings,
            self._around.hints,
            self._around.viewer,
            self._tools,
            definitions,
            log=self._log,
            events=self._events,
            session=session,
            date=self._date,
        )
        executor = Executor(self._tools, timeout=self._settings.tool_timeout_s, run_sub_agent=self._sub_agents.run)
        objective = self._settings.system_prompt or prompts.MAIN_OBJECTIVE
        history, asked = self._history(prompt_of(catalog, self._settings, objective, self._date))
        parts = Parts(
            session=session,
            llm=self._around.llm,
            catalog=catalog,
            settings=self._settings,
            history=history,
            journal=self._log.continued(MAIN),
            execute=executor,
            hints=self._around.hints,
            watch=self._watch,
            asked=asked,
        )
        return Worker(
            Conversation(parts),
            self._watch,
            max_turns=self._settings.max_turns,
            final_request=self._final_request,
            pause=self._settings.pause_after_failure_s,
        )

    def _history(self, system: str) -> tuple[History, AskedQueries]:
        """A new conversation, or the one a log had, cut back to its last whole turn."""
        asked = AskedQueries()
        settings = self._settings
        before = self._replay.main if self._replay is not None else None
        resumes = before is not None and bool(before.messages)
        if before is not None and resumes:
            system = before.system  # with the date it began on
        history = History(
            system,
            protocol=settings.protocol,
            result_chars=settings.result_chars,
            journal=self._log.continued(MAIN) if resumes else self._log.conversation(MAIN, system),
            restored=before.messages if before is not None else (),
        )
        if before is None or not resumes:
            history.append_user(prompts.question(self._task, boxed=settings.boxed_answer))
            return history, asked
        if before.is_mid_turn:
            history.pop_turn()
        for call in before.calls:
            asked.note(call)
        return history, asked
