"""Runs one conversation with the model, turn by turn: sends the prompt, reads the answer, runs tools meanwhile.

A turn that is not worth keeping is rolled back: its answer is removed from the history and its calls are cancelled. If
the model still writes at that moment, it is stopped.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import anyio

from toolhub.config import AgentSettings
from toolhub_agent.events import AgentReporter
from toolhub_agent.history import ContextBudget, History, ToolResultTrimmer
from toolhub_agent.kv_hints.signals import (
    AboutToResume,
    HintSink,
    HistoryRewritten,
    Prompt,
    Resumed,
    SessionFinal,
    ToolResultReady,
    ToolWaitStarted,
    TurnFinished,
)
from toolhub_agent.llm.client import LlmRequest
from toolhub_agent.prefix_report import PrefixReport
from toolhub_agent.tasklog import ConversationLog
from toolhub_agent.tool_calls import CallEvent, CallFinished, CallStarted, Dispatcher, Execute, Prefetch, TurnCalls
from toolhub_agent.tool_calls.catalog import ToolCatalog
from toolhub_agent.types import Completion, Delta, Json, ToolCall, ToolOutcome, Usage

# --- The model --------------------------------------------------------------------------------------------------------
# What the agent loop needs of a client of model servers.


class CompletionStream(Protocol):
    """One answer, piece by piece. `LlmStream` says what it raises."""

    @property
    def completion(self) -> Completion:
        """The whole answer, available after the iteration ended normally."""

    def __aiter__(self) -> AsyncIterator[Delta]: ...


class ChatModel(Protocol):
    """A model to chat with: `LlmClient`, or a recording of one."""

    @property
    def known_model(self) -> str | None:
        """The model's name; None if it is not known yet."""

    def stream(self, request: LlmRequest) -> AbstractAsyncContextManager[CompletionStream]: ...

    def forget(self, session: str) -> None: ...


# --- Repeated queries -------------------------------------------------------------------------------------------------
# The queries that an agent has asked already. Asking one again yields nothing new, so the model must find another.

# The arguments that form a query, by tool. Servers of the same tool name them differently.
_QUERY_ARGUMENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "search_and_browse": (("subtask",),),
    "google_search": (("q",),),
    "sogou_search": (("Query", "q"),),
    "scrape_website": (("url",),),
    "scrape_and_extract_info": (("url",), ("info_to_extract",)),
}
# The second page of a search is another query, although the words are the same.
_VARIANTS = ("page", "num", "tbs", "location")


def query_of(call: ToolCall) -> str | None:
    """The query of a call as one text; None for tools whose calls may be repeated."""
    parts = _QUERY_ARGUMENTS.get(call.tool)
    if parts is None:
        return None
    asked = [_first(call.arguments, names) for names in parts]
    variants = [f"{name}={call.arguments[name]}" for name in _VARIANTS if name in call.arguments]
    return "_".join([call.tool, *asked, *variants])


def _first(arguments: Json, names: tuple[str, ...]) -> str:
    return next((str(arguments[name]) for name in names if name in arguments), "")


class AskedQueries:
    """The queries whose results are in the history. One object per agent and task."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    def __contains__(self, call: ToolCall) -> bool:
        return query_of(call) in self._asked

    def note(self, call: ToolCall) -> None:
        """Remember a query whose result stays. With an empty result the next attempt would count as a duplicate."""
        if (query := query_of(call)) is not None:
            self._asked.add(query)


# --- When a turn is rolled back ---------------------------------------------------------------------------------------
# When a turn is rolled back and sampled again. The model is not told.
#
# The rules are MiroFlow's, except for two of its faults. A backend's error is not an empty result: that would cost up
# to four more turns per failed search. A turn is rolled back for a query only if that query's result is in the history.

_REFUSALS = ("time constraint", "I’m sorry, but I can’t", "I'm sorry, I cannot solve")
_ERROR_PREFIXES = ("Unknown tool:", "Error executing tool")
_SEARCH_TOOLS = frozenset({"google_search"})


class Rollbacks:
    """Counts rolled-back turns in a row. At most `limit - 1` are rolled back; the next turn stays."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_a_row = 0
        self.total = 0

    def __repr__(self) -> str:
        return f"<Rollbacks {self._in_a_row} in a row, {self.total} in all>"

    @property
    def is_allowed(self) -> bool:
        return self._in_a_row < self._limit - 1

    def note_rollback(self) -> None:
        self._in_a_row += 1
        self.total += 1

    def note_success(self) -> None:
        self._in_a_row = 0


def is_refusal(text: str) -> bool:
    """Whether a text without a call refuses to go on."""
    return any(words in text for words in _REFUSALS)


def reason_to_retry(outcome: ToolOutcome) -> str | None:
    """Why a result is not worth keeping: the call was wrong, or a search found nothing. None: keep it."""
    if outcome.text.startswith(_ERROR_PREFIXES):
        return outcome.text.splitlines()[0][:200]
    if outcome.call.tool in _SEARCH_TOOLS and _is_empty_search(outcome.text):
        return "the search found nothing"
    return None


def _is_empty_search(text: str) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    if not isinstance(found, dict) or found.get("error") or found.get("success") is False:
        return False
    return not found.get("organic")


# --- The conversation -------------------------------------------------------------------------------------------------
# MiroFlow's factor: an answer that was cut off is sampled again with this much more room.


_MORE_ROOM = 1.1
# How often that is done. After that the answer stays as it is.
_LENGTH_RETRIES = 3


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The result of one request. rolled_back: why it does not count; None: it is in the history."""

    completion: Completion | None
    outcomes: tuple[ToolOutcome, ...] = ()
    rolled_back: str | None = None

    @property
    def is_last(self) -> bool:
        """Whether the model has finished: it made no call."""
        return self.rolled_back is None and not self.outcomes


@dataclass
class ConversationDeps:
    """What a conversation uses."""

    session: str
    llm: ChatModel
    catalog: ToolCatalog
    settings: AgentSettings
    history: History
    journal: ConversationLog
    execute: Execute
    hints: HintSink
    reporter: AgentReporter
    prefetch: Prefetch | None = None
    parent: str | None = None
    """The session of the agent that waits for this one."""
    asked: AskedQueries = field(default_factory=AskedQueries)


@dataclass(eq=False)
class _Turn:
    """The state of a running turn. number: it will have this number if it stays. listening: while the model writes."""

    number: int
    may_roll_back: bool
    listening: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    calls: tuple[ToolCall, ...] = ()
    endpoint: str = ""
    started: list[ToolCall] = field(default_factory=list)
    finished: list[ToolOutcome] = field(default_factory=list)
    """All outcomes, also those that were not read yet."""
    outcomes: list[ToolOutcome] = field(default_factory=list)
    """The outcomes that were read, in the order of completion."""
    events: dict[int, str] = field(default_factory=dict)
    """The event of each call that was reported, by call index."""
    reason: str | None = None
    """Why the turn must be rolled back."""
    is_cut_off: bool = False

    @property
    def left(self) -> int:
        return len(self.calls) - len(self.outcomes)

    def in_order(self) -> list[ToolOutcome]:
        """The results from the first call on without a gap: they can be in a prompt already."""
        by_index = {outcome.call.index: outcome for outcome in self.outcomes}
        known = itertools.takewhile(lambda call: call.index in by_index, self.calls)
        return [by_index[call.index] for call in known]


class Conversation:
    """Takes turns. All lasting state is in the history. The other state only makes turns cheaper."""

    def __init__(self, deps: ConversationDeps) -> None:
        self.session = deps.session
        self.history = deps.history
        self.rollbacks = Rollbacks(deps.settings.max_rollbacks)
        self.prefix = PrefixReport()
        self.usage: list[Usage] = []
        self._deps = deps
        self._settings = deps.settings
        self._trimmer = ToolResultTrimmer(deps.settings.keep_tool_result, deps.settings.trim_every)
        self._budget = ContextBudget(
            max_context_tokens=deps.settings.max_context_tokens,
            max_answer_tokens=deps.settings.sampling.max_tokens,
        )
        self._tools = deps.catalog.native_tools() if deps.settings.protocol == "native" else []
        self._stored: dict[tuple[str, str, str], str] = {}
        """Results of read-only calls in turns that were rolled back, by call."""
        self._length_retries = 0

    def __repr__(self) -> str:
        return f"<Conversation {self.session} {self.history!r}>"

    # --- a turn ------------------------------------------------------------------------------------------------------

    async def take_turn(self) -> TurnResult:
        """Ask the model, run its calls, and append both to the history.

        Raises LlmError or AnswerUnreadable; then nothing is appended.
        """
        turn = _Turn(self.history.turns + 1, self.rollbacks.is_allowed)
        try:
            completion = await self._run_turn(turn)
        except Exception as exc:
            self._log_dropped(turn, str(exc))
            raise
        if turn.reason is not None:
            self._log_dropped(turn, turn.reason)
            return self._rolled_back(completion, turn, turn.reason)
        self._keep(turn)
        return TurnResult(completion, tuple(turn.outcomes))

    async def _run_turn(self, turn: _Turn) -> Completion | None:
        """Ask the model and run its calls. If it sets `turn.reason`, nothing of the turn is in the history."""
        async with self._dispatcher(turn) as dispatcher:
            completion = await self._listen(dispatcher, turn)
            if completion is None:
                return None
            calls = await dispatcher.finish(run=False)
            if self._must_roll_back(turn, completion, calls):
                return completion
            if calls.native:
                # The calls that run have these ids. A server may have given none.
                completion = dataclasses.replace(completion, tool_calls=calls.native)
            self.history.append_assistant(completion)
            self._signal_wait(completion, calls.calls)
            await self._run(dispatcher, turn)
        if turn.reason is not None:
            self.history.pop_turn()
            self._signal(HistoryRewritten(self.session, len(self.history)))
        return completion

    async def answer(self, request: str) -> Completion:
        """Ask for a text without tools. The request and the answer stay in the history. Raises LlmError."""
        self.history.append_user(request)
        try:
            completion = await self._ask(lambda delta: None)
        except BaseException:
            self.history.pop_results()
            raise
        self.history.append_assistant(completion)
        return completion

    def fits(self, final_request: str) -> bool:
        """Whether the context has room for another turn and for the final answer after it."""
        return self._budget.fits(self.history.messages(), final_request)

    def close(self) -> None:
        """End the conversation. It sends no more requests."""
        self._signal(SessionFinal(self.session))
        self._deps.llm.forget(self.session)

    def _dispatcher(self, turn: _Turn) -> Dispatcher:
        return Dispatcher(
            partial(self._execute, turn),
            self._deps.catalog,
            protocol=self._settings.protocol,
            eager=self._settings.eager,
            order="completed",
            parallel=self._settings.parallel_calls,
            tolerant=not turn.may_roll_back,
            prefetch=self._deps.prefetch,
            on_event=partial(self._report, turn),
        )

    async def _listen(self, dispatcher: Dispatcher, turn: _Turn) -> Completion | None:
        """Feed the stream to the dispatcher. Return None if the turn must be rolled back; the stream is then closed."""
        with turn.listening:
            return await self._ask(dispatcher.feed)
        return None

    async def _ask(self, feed: Callable[[Delta], None]) -> Completion:
        request = self._request()
        async with self._deps.llm.stream(request) as stream, self._deps.reporter.generating() as seen:
            async for delta in stream:
                feed(delta)
                await seen(delta)
        self._account(request, stream.completion)
        return stream.completion

    async def _run(self, dispatcher: Dispatcher, turn: _Turn) -> None:
        """Run the remaining calls. Read results as they come, until one of them causes a rollback."""
        await dispatcher.finish(run=True)
        async for outcome in dispatcher.results():
            turn.outcomes.append(outcome)
            if turn.may_roll_back and (reason := reason_to_retry(outcome)) is not None:
                turn.reason = reason
                dispatcher.cancel()
                return
            self._signal_result(outcome, turn)

    # --- a call ------------------------------------------------------------------------------------------------------

    async def _execute(self, turn: _Turn, call: ToolCall) -> str:
        """Run a call, or return its stored result from a turn that was rolled back."""
        if turn.reason is not None:
            await anyio.sleep_forever()  # the turn is being rolled back, which cancels this call
        if self._deps.catalog.find(call.server, call.tool) is None:
            return f"Unknown tool: {call.tool}"  # also for hidden tools
        if (stored := self._stored.get(_call_key(call))) is not None:
            return stored
        return await self._deps.execute(call)

    async def _report(self, turn: _Turn, event: CallEvent) -> None:
        """Write a call's start and its outcome to the log, and show them. A refused call is in neither."""
        match event:
            case CallStarted(call, early):
                if self._refuses(turn, call):
                    return
                turn.started.append(call)
                self._deps.journal.call_started(turn.number, call, early=early)
                turn.events[call.index] = await self._deps.reporter.call_started(call)
            case CallFinished(outcome):
                turn.finished.append(outcome)
                self._deps.journal.call_finished(turn.number, outcome)
                await self._deps.reporter.call_finished(outcome, turn.events[outcome.call.index])

    # --- the end of a turn -------------------------------------------------------------------------------------------

    def _must_roll_back(self, turn: _Turn, completion: Completion, calls: TurnCalls) -> bool:
        """Whether the answer alone is a reason to roll the turn back."""
        turn.endpoint, turn.calls = completion.endpoint, calls.calls
        if completion.finish_reason == "length" and self._length_retries < _LENGTH_RETRIES:
            turn.reason, turn.is_cut_off = "the answer was cut off", True
        elif turn.may_roll_back and (calls.problem or calls.format_error):
            turn.reason = calls.problem or "a tool call was begun and not completed"
        elif turn.may_roll_back and not calls.calls and is_refusal(completion.text):
            turn.reason = "the model refused to go on"
        for call in calls.calls:
            self._refuses(turn, call)
        return turn.reason is not None

    def _refuses(self, turn: _Turn, call: ToolCall) -> bool:
        """Whether a call must not run. A repeated query ends the turn at once."""
        if turn.may_roll_back and call in self._deps.asked:
            turn.reason = f"{call.server}/{call.tool} was asked this before"
            turn.listening.cancel()
        return turn.reason is not None

    def _log_dropped(self, turn: _Turn, reason: str) -> None:
        finished = {outcome.call.index for outcome in turn.finished}
        cancelled = [call for call in turn.started if call.index not in finished]
        self._deps.journal.turn_dropped(turn.number, reason, cancelled)

    def _rolled_back(self, completion: Completion | None, turn: _Turn, reason: str) -> TurnResult:
        if turn.is_cut_off:
            self._length_retries += 1
        else:
            self.rollbacks.note_rollback()
        for outcome in turn.finished:
            call = outcome.call
            if not outcome.is_error and not reason_to_retry(outcome) and self._is_read_only(call):
                self._stored[_call_key(call)] = outcome.text
        return TurnResult(completion, rolled_back=reason)

    def _keep(self, turn: _Turn) -> None:
        self._length_retries = 0
        self._stored.clear()
        self.rollbacks.note_success()
        self.history.append_results(turn.outcomes)
        for outcome in turn.outcomes:
            self._deps.asked.note(outcome.call)

    def _is_read_only(self, call: ToolCall) -> bool:
        return self._deps.catalog.is_read_only(call.server, call.tool)

    # --- requests and token counts -----------------------------------------------------------------------------------

    def _request(self) -> LlmRequest:
        view = self._trimmer.view(self.history.messages())
        if view.is_rewritten:
            self._signal(HistoryRewritten(self.session, view.kept))
        self._signal(AboutToResume(self.session))
        body = self._body()
        if self._length_retries:
            body["max_tokens"] = int(self._settings.sampling.max_tokens * _MORE_ROOM**self._length_retries)
        return LlmRequest(
            self.session,
            view.messages,
            body,
            self._settings.sampling,
            engine_fields=partial(self._deps.hints.engine_fields, self.session),
            parent=self._deps.parent,
            is_rewritten=view.is_rewritten,
        )

    def _body(self) -> Json:
        """The fields besides messages that shape the prompt. They are the same in every turn."""
        if not self._tools:
            return {}
        parallel = {"parallel_tool_calls": True} if self._settings.ask_for_parallel_calls else {}
        return {"tools": self._tools, "tool_choice": "auto", **parallel}

    def _account(self, request: LlmRequest, completion: Completion) -> None:
        number = self.history.turns + 1
        self.usage.append(completion.usage)
        self._budget.note(request.messages, completion.usage)
        self.prefix.add(number, request.messages, request.body, completion.usage)
        self._deps.journal.answered(number, completion)
        self._signal(Resumed(self.session, completion.usage, completion.ttft))

    # --- signals -----------------------------------------------------------------------------------------------------

    def _signal(self, signal: Any) -> None:
        self._deps.hints.signal(signal)

    def _signal_wait(self, completion: Completion, calls: Sequence[ToolCall]) -> None:
        if not calls:
            return
        prompt = self._next_prompt((), completion.endpoint)
        self._signal(TurnFinished(self.session, prompt, completion.usage, completion.ttft))
        self._signal(ToolWaitStarted(self.session, tuple((call.server, call.tool) for call in calls)))

    def _signal_result(self, outcome: ToolOutcome, turn: _Turn) -> None:
        call, ready = outcome.call, turn.in_order()
        prompt = self._next_prompt(ready, turn.endpoint) if ready and turn.left else None
        self._signal(ToolResultReady(self.session, call.server, call.tool, outcome.seconds, turn.left, prompt))

    def _next_prompt(self, ready: Sequence[ToolOutcome], endpoint: str) -> Prompt:
        """The known beginning of the next request, trimmed as the request will be. ready: this turn's first results."""
        messages = [*self.history.messages(), *(self.history.results_of(ready) if ready else ())]
        shown = self._trimmer.preview(messages, coming=0 if ready else 1)
        body = self._settings.sampling.extra_body | self._body()
        if (model := self._deps.llm.known_model) is not None:
            body["model"] = model
        return Prompt(tuple(shown), body, endpoint)


def _call_key(call: ToolCall) -> tuple[str, str, str]:
    return call.server, call.tool, repr(sorted(call.arguments.items(), key=lambda item: item[0]))
