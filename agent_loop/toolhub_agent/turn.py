"""Runs one conversation with the model, turn by turn: sends the prompt, reads the answer, runs tools meanwhile.

A turn that is not worth keeping is rolled back: its answer is removed from the history and its calls are cancelled. If
the model still writes at that moment, it is stopped.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import anyio

from toolhub.config import AgentSettings
from toolhub_agent.events import AgentReporter
from toolhub_agent.history import History
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
from toolhub_agent.tool_calls import CallEvent, CallStarted, Dispatcher, TurnCalls
from toolhub_agent.tool_calls.catalog import ToolCatalog
from toolhub_agent.trimming import ContextBudget, ToolResultTrimmer
from toolhub_agent.types import Completion, Delta, Json, Message, ToolCall, ToolOutcome, Usage

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
    execute: Callable[[ToolCall], Awaitable[ToolOutcome]]
    hints: HintSink
    reporter: AgentReporter
    asked: AskedQueries = field(default_factory=AskedQueries)


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
        self._keep = ToolResultTrimmer(deps.settings.keep_tool_result, deps.settings.trim_every)
        self._budget = ContextBudget(
            max_context_tokens=deps.settings.max_context_tokens,
            max_answer_tokens=deps.settings.sampling.max_tokens,
        )
        self._tools = deps.catalog.native_tools() if deps.settings.protocol == "native" else []
        self._spare: dict[tuple[str, str, str], ToolOutcome] = {}
        self._length_retries = 0
        self._resuming = False

    def __repr__(self) -> str:
        return f"<Conversation {self.session} {self.history!r}>"

    # --- a turn ------------------------------------------------------------------------------------------------------

    async def take_turn(self) -> TurnResult:
        """Ask the model, run its calls, and append both to the history.

        Raises LlmError or AnswerUnreadable; then nothing is appended.
        """
        turn = _RunningTurn(self, may_roll_back=self.rollbacks.is_allowed)
        async with self._dispatcher(turn) as dispatcher:
            completion = await self._listen(dispatcher, turn)
            if completion is None:
                return self._rolled_back(None, turn)
            calls = await dispatcher.finish(run=False)
            if turn.settle(completion, calls):
                return self._rolled_back(completion, turn)
            if calls.native:
                completion = dataclasses.replace(completion, tool_calls=calls.native)  # every call has an id there
            self.history.append_assistant(completion)
            self._tell_turn_finished(completion, calls.calls)
            await self._run(dispatcher, turn)
        if turn.reason is not None:
            self.history.pop_turn()
            self._signal(HistoryRewritten(self.session, len(self.history)))
            return self._rolled_back(completion, turn)
        self._stand(turn)
        return TurnResult(completion, tuple(turn.outcomes))

    async def answer(self, request: str) -> Completion:
        """Ask for a text without tools. The request and the answer stay in the history. Raises LlmError."""
        self.history.append_user(request)
        try:
            completion = await self._complete()
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

    def _dispatcher(self, turn: _RunningTurn) -> Dispatcher:
        return Dispatcher(
            turn.execute,
            self._deps.catalog,
            protocol=self._settings.protocol,
            eager=self._settings.eager,
            order="completed",
            parallel=self._settings.parallel_calls,
            tolerant=not turn.may_roll_back,
            on_event=turn.note,
        )

    async def _listen(self, dispatcher: Dispatcher, turn: _RunningTurn) -> Completion | None:
        """Feed the stream to the dispatcher. Return None if the turn must be rolled back; the stream is then closed."""
        request = self._request()
        with turn.listening:
            async with self._deps.llm.stream(request) as stream, self._deps.reporter.generating() as seen:
                async for delta in stream:
                    dispatcher.feed(delta)
                    await seen(delta)
            self._account(request, stream.completion)
            return stream.completion
        return None

    async def _complete(self) -> Completion:
        request = self._request()
        async with self._deps.llm.stream(request) as stream, self._deps.reporter.generating() as seen:
            async for delta in stream:
                await seen(delta)
        self._account(request, stream.completion)
        return stream.completion

    async def _run(self, dispatcher: Dispatcher, turn: _RunningTurn) -> None:
        """Run the remaining calls. Read results as they come, until one of them causes a rollback."""
        await dispatcher.finish(run=True)
        async for outcome in dispatcher.results():
            turn.take(outcome)
            if turn.reason is not None:
                dispatcher.cancel()
                return
            self._tell_result(outcome, turn)

    # --- requests and token counts -----------------------------------------------------------------------------------

    def _request(self) -> LlmRequest:
        view = self._keep.view(self.history.messages())
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
        )

    def _body(self) -> Json:
        """The fields besides messages that shape the prompt. They are the same in every turn."""
        return {"tools": self._tools, "tool_choice": "auto"} if self._tools else {}

    def _account(self, request: LlmRequest, completion: Completion) -> None:
        number = self.history.turns + 1
        self.usage.append(completion.usage)
        self._budget.note(request.messages, completion.usage)
        self.prefix.add(number, request.messages, request.body, completion.usage)
        self._deps.journal.answered(number, completion)
        if self._resuming:
            self._signal(Resumed(self.session, completion.usage, completion.ttft))
        self._resuming = False

    # --- the end of a turn -------------------------------------------------------------------------------------------

    def _rolled_back(self, completion: Completion | None, turn: _RunningTurn) -> TurnResult:
        reason = turn.reason or "unknown"
        if turn.is_cut_off:
            self._length_retries += 1
        else:
            self.rollbacks.note_rollback()
        for outcome in turn.executed:
            if outcome.is_error or reason_to_retry(outcome):
                continue
            if self._deps.catalog.is_read_only(outcome.call.server, outcome.call.tool):
                self._spare[_call_key(outcome.call)] = outcome
        return TurnResult(completion, rolled_back=reason)

    def _stand(self, turn: _RunningTurn) -> None:
        self._length_retries = 0
        self._spare.clear()
        self.rollbacks.note_success()
        self.history.append_results(turn.outcomes)
        for outcome in turn.outcomes:
            self._deps.asked.note(outcome.call)

    # --- signals -----------------------------------------------------------------------------------------------------

    def _signal(self, signal: Any) -> None:
        self._deps.hints.signal(signal)

    def _tell_turn_finished(self, completion: Completion, calls: Sequence[ToolCall]) -> None:
        if not calls:
            return
        prompt = self._prompt((), completion.endpoint)
        self._signal(TurnFinished(self.session, prompt, completion.usage, completion.ttft))
        self._signal(ToolWaitStarted(self.session, tuple((call.server, call.tool) for call in calls)))
        self._resuming = True

    def _tell_result(self, outcome: ToolOutcome, turn: _RunningTurn) -> None:
        call, ready = outcome.call, turn.in_order()
        prompt = self._prompt(ready, turn.endpoint) if ready and turn.left else None
        self._signal(ToolResultReady(self.session, call.server, call.tool, outcome.seconds, turn.left, prompt))

    def _prompt(self, ready: Sequence[ToolOutcome], endpoint: str) -> Prompt:
        """The known beginning of the next request, trimmed as the request will be."""
        results = self.history.results_of(ready) if ready else []
        messages = [*self.history.messages(), *(results or [_PLACEHOLDER])]
        shown: list[Message] = (
            ToolResultTrimmer(self._settings.keep_tool_result, self._settings.trim_every).view(messages).messages
        )
        body = self._settings.sampling.extra_body | self._body()
        if (model := self._deps.llm.known_model) is not None:
            body["model"] = model
        return Prompt(tuple(shown if results else shown[:-1]), body, endpoint)

    # --- callbacks of a running turn ---------------------------------------------------------------------------------

    def is_duplicate(self, call: ToolCall) -> bool:
        return call in self._deps.asked

    def may_retry_length(self) -> bool:
        return self._length_retries < _LENGTH_RETRIES

    async def execute(self, call: ToolCall, *, turn: int, early: bool) -> ToolOutcome:
        """Run a call, or return its stored result from a turn that was rolled back."""
        if self._deps.catalog.find(call.server, call.tool) is None:
            return ToolOutcome(call, f"Unknown tool: {call.tool}")  # also for hidden tools
        if (spare := self._spare.get(_call_key(call))) is not None:
            return ToolOutcome(call, spare.text, started_early=early)
        self._deps.journal.call_started(turn, call, early=early)
        async with self._deps.reporter.calling(call) as ended:
            outcome = dataclasses.replace(await self._deps.execute(call), started_early=early)
            ended(outcome)
        self._deps.journal.call_finished(turn, outcome)
        return outcome


_PLACEHOLDER: Message = {"role": "tool", "content": ""}


class _RunningTurn:
    """A running turn: its calls, their results, and whether it must be rolled back."""

    def __init__(self, conversation: Conversation, *, may_roll_back: bool) -> None:
        self.outcomes: list[ToolOutcome] = []
        self.executed: list[ToolOutcome] = []
        """All results, also those that were not read yet."""
        self.reason: str | None = None
        self.is_cut_off = False
        self.endpoint = ""
        self.listening = anyio.CancelScope()
        self._calls: tuple[ToolCall, ...] = ()
        self._conversation = conversation
        self._number = conversation.history.turns + 1
        self._early: set[int] = set()
        self.may_roll_back = may_roll_back

    async def execute(self, call: ToolCall) -> ToolOutcome:
        if self._refuses(call):
            return ToolOutcome(call, self.reason or "", is_error=True)
        early = call.index in self._early
        outcome = await self._conversation.execute(call, turn=self._number, early=early)
        self.executed.append(outcome)
        return outcome

    def note(self, event: CallEvent) -> None:
        """The dispatcher calls this just before it runs a call."""
        if isinstance(event, CallStarted) and event.early:
            self._early.add(event.call.index)

    def settle(self, completion: Completion, calls: TurnCalls) -> bool:
        """Handle the end of the stream. Return whether the turn must be rolled back at once."""
        self.endpoint, self._calls = completion.endpoint, calls.calls
        if completion.finish_reason == "length" and self._conversation.may_retry_length():
            self.reason, self.is_cut_off = "the answer was cut off", True
        elif self.may_roll_back and (calls.problem or calls.format_error):
            self.reason = calls.problem or "a tool call was begun and not completed"
        elif self.may_roll_back and not calls.calls and is_refusal(completion.text):
            self.reason = "the model refused to go on"
        for call in calls.calls:
            self._refuses(call)
        return self.reason is not None

    def _refuses(self, call: ToolCall) -> bool:
        if self.may_roll_back and self._conversation.is_duplicate(call):
            self.reason = f"{call.server}/{call.tool} was asked this before"
            self.listening.cancel()
        return self.reason is not None

    def take(self, outcome: ToolOutcome) -> None:
        self.outcomes.append(outcome)
        if self.may_roll_back and (reason := reason_to_retry(outcome)) is not None:
            self.reason = reason

    @property
    def left(self) -> int:
        return len(self._calls) - len(self.outcomes)

    def in_order(self) -> list[ToolOutcome]:
        """The results from the first call on without a gap: they can be in a prompt already."""
        by_index: Mapping[int, ToolOutcome] = {outcome.call.index: outcome for outcome in self.outcomes}
        ready: list[ToolOutcome] = []
        for call in self._calls:
            if call.index not in by_index:
                break
            ready.append(by_index[call.index])
        return ready


def _call_key(call: ToolCall) -> tuple[str, str, str]:
    return call.server, call.tool, repr(sorted(call.arguments.items(), key=lambda item: item[0]))
