"""Agents that the main agent calls like tools: each call is a conversation of its own, with a report at its end."""

from __future__ import annotations

import datetime
import uuid

from toolhub.config import AgentSettings
from toolhub_agent.context.history import History
from toolhub_agent.kv_hints.signals import HintSink
from toolhub_agent.loop import prompts
from toolhub_agent.loop.conversation import Conversation, Parts
from toolhub_agent.loop.executor import Executor
from toolhub_agent.loop.model_access import ModelAccess
from toolhub_agent.loop.setup import catalog_of, definitions_for, prompt_of
from toolhub_agent.loop.watch import LoopWatch, Viewer
from toolhub_agent.loop.worker import Worker
from toolhub_agent.model import Json, Usage, added
from toolhub_agent.tasklog import StreamEvents, TaskLog
from toolhub_agent.tool_calls.catalog import SUB_AGENT_PREFIX
from toolhub_agent.tools import ToolSource

NO_REPORT = "The sub-agent could not be asked for its report."


class SubAgents:
    """Runs the sub-agents of one task. usage: of all of them so far."""

    def __init__(
        self,
        llm: ModelAccess,
        settings: AgentSettings,
        hints: HintSink,
        viewer: Viewer,
        tools: ToolSource,
        definitions: list[Json],
        *,
        log: TaskLog,
        events: StreamEvents,
        session: str,
        date: datetime.date,
    ) -> None:
        """definitions: of all servers; each sub-agent sees those of its own. session: of the main agent."""
        self.usage = Usage()
        self._llm = llm
        self._settings = settings
        self._hints = hints
        self._viewer = viewer
        self._tools = tools
        self._definitions = definitions
        self._log = log
        self._events = events
        self._session = session
        self._date = date

    async def run(self, server: str, subtask: str) -> str:
        """Have a subtask worked on; returns the report. Raises ValueError for an agent that there is not."""
        settings = self._settings.sub_agents.get(server.removeprefix(SUB_AGENT_PREFIX))
        if settings is None:
            raise ValueError(f"there is no agent {server!r}")
        if not subtask.strip():
            raise ValueError("the argument 'subtask' is missing")
        name = self._log.sub_agent_started(server, subtask)
        worker = self._worker(name, server, settings.servers, settings.max_turns, subtask)
        try:
            async with LoopWatch(server, self._events, self._viewer).working():
                await worker.work()
                return await worker.last_word(attempts=self._settings.answer_attempts, boxed=False) or NO_REPORT
        finally:
            self.usage = added(self.usage, worker.usage)
            worker.conversation.close()
            self._log.sub_agent_ended(name, server)

    def _worker(self, name: str, server: str, servers: list[str], max_turns: int, subtask: str) -> Worker:
        catalog = catalog_of(definitions_for(self._definitions, servers), self._settings)
        system = prompt_of(catalog, self._settings, prompts.SUB_AGENT_OBJECTIVE, self._date)
        journal = self._log.conversation(name, system)
        history = History(
            system, protocol=self._settings.protocol, result_chars=self._settings.result_chars, journal=journal
        )
        history.append_user(subtask)
        watch = LoopWatch(server, self._events, self._viewer)
        parts = Parts(
            session=f"{self._session}-{name}-{uuid.uuid4().hex[:8]}",
            llm=self._llm,
            catalog=catalog,
            settings=self._settings,
            history=history,
            journal=journal,
            execute=Executor(self._tools, timeout=self._settings.tool_timeout_s),
            hints=self._hints,
            watch=watch,
        )
        return Worker(
            Conversation(parts),
            watch,
            max_turns=max_turns,
            final_request=prompts.report(subtask),
            pause=self._settings.pause_after_failure_s,
        )
