"""The conversations that pass through the proxy, and the hub's tool calls that belong to them.

A call of the hub belongs to the conversation whose latest answer asks for it: the same tool with the same arguments.
This also works for agents that name no session (MiroFlow's tools run under ids of their own). If arguments were
corrected on the way, the call belongs to the conversation of the same task that waits for that tool. If there is none,
it belongs to the conversation that began to wait last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio

from toolhub.model import Call, FairShareKey
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
from toolhub_agent.llm.transport import SESSION_HEADERS, header_value, session_headers
from toolhub_agent.proxy.http_messages import Header, header_text
from toolhub_agent.proxy.prefix_index import (
    AnswerFingerprints,
    AssistantMessageFormat,
    PrefixHashes,
    SessionMatcher,
    digest_of,
    fingerprints_of,
    prefix_hashes,
)
from toolhub_agent.tool_calls.arguments import read_arguments
from toolhub_agent.tool_calls.xml_calls import XmlCallReader
from toolhub_agent.types import Json, Message

if TYPE_CHECKING:
    from toolhub import Hub
    from toolhub_agent.proxy.forward import TappedAnswer

# --- Calls that an answer asks for ------------------------------------------------------------------------------------
# The tool calls that an answer asks for. They are compared with the hub's calls.


_CALL_TAG = "<use_mcp_tool>"
# No answer asks for more calls.
MAX_PENDING_CALLS = 128


@dataclass(frozen=True, slots=True)
class PendingToolCall:
    """A call that an answer asks for. name: of the tool, or of a function that ends with it (agents add a prefix)."""

    name: str
    server: str
    arguments: bytes
    """The hash of the arguments."""

    def may_be(self, tool: str) -> bool:
        """Whether this may be a call of `tool`. It treats `a-search` and `search` of a server `a` as the same."""
        return self.name == tool or (self.name.endswith(tool) and not self.name[-len(tool) - 1].isalnum())


def pending_tool_calls(text: str, calls: Sequence[Json]) -> tuple[PendingToolCall, ...]:
    """The native calls; if there are none, the XML calls in the text (MiroFlow's format)."""
    try:
        return tuple(_pending_native(call) for call in calls[:MAX_PENDING_CALLS]) if calls else _pending_xml(text)
    except ModuleNotFoundError:
        return ()  # only json-repair could read the arguments, and the extra `agent` is not installed


def _pending_xml(text: str) -> tuple[PendingToolCall, ...]:
    if _CALL_TAG not in text:
        return ()
    reader = XmlCallReader()
    found = [*reader.feed(text)]
    reader.close()
    thought = set(reader.take_withdrawn())
    return tuple(
        PendingToolCall(call.tool, call.server, arguments_digest(call.arguments))
        for call in found
        if call.index not in thought
    )[:MAX_PENDING_CALLS]


def arguments_digest(arguments: Mapping[str, Any]) -> bytes:
    """A hash that ignores the order of arguments and those that are null."""
    given = {name: value for name, value in arguments.items() if value is not None}
    return digest_of(json.dumps(given, sort_keys=True, default=str).encode())


def _pending_native(call: Json) -> PendingToolCall:
    function = call.get("function") or {}
    arguments, _ = read_arguments(str(function.get("arguments") or ""))
    return PendingToolCall(str(function.get("name") or ""), "", arguments_digest(arguments))


# --- One conversation -------------------------------------------------------------------------------------------------
# One conversation that passes through the proxy, and the signals that the hints get about it.


Tool = tuple[str, str]


@dataclass(eq=False)
class ProxySession:
    """One conversation. name: its name in signals. affinity: decides its endpoint. headers: those of its requests.

    hashes: of the latest request. task_id: the hub's task whose calls belong to this conversation; None if unknown.
    """

    name: str
    affinity: str
    sink: HintSink
    headers: Mapping[str, str] = field(default_factory=dict)
    task_id: str | None = None
    message_format: AssistantMessageFormat = AssistantMessageFormat()
    hashes: PrefixHashes | None = None
    token: str | None = None
    """The router's token, to be sent with the next request."""
    turns: int = 0
    has_called: bool = False
    """Whether any answer asked for calls, in a form that the proxy can read."""
    is_asking: bool = False
    is_rewritten: bool = False
    """Whether the latest request's prompt was cut or replaced before the end of the one before it."""
    used_at: float = field(default_factory=anyio.current_time)
    pending: tuple[PendingToolCall, ...] = ()
    """The calls that the latest answer asks for."""
    running: list[Tool] = field(default_factory=list)
    _fingerprints: AnswerFingerprints | None = None
    _began: int = 0
    _ended: int = 0
    _is_reported: bool = False
    """Whether the hints got the prompt that the next turn will have."""

    def __repr__(self) -> str:
        state = "asking" if self.is_asking else f"{len(self.running)} calls running"
        return f"<ProxySession {self.name}: {self.turns} turns, {state}, task {self.task_id}>"

    @property
    def is_in_use(self) -> bool:
        return self.is_asking or bool(self.running)

    @property
    def will_go_on(self) -> bool:
        """Whether another request is expected after the latest answer.

        Yes, if the answer asks for calls. If the proxy could read none so far, a second request shows that it cannot.
        """
        return bool(self.pending or self.running) or (self.turns > 1 and not self.has_called)

    @property
    def has_unstarted_calls(self) -> bool:
        """Whether the latest answer asks for calls that have not begun yet."""
        return self._began < len(self.pending)

    def answered(self, message: Message) -> bool:
        """Whether this message is the latest answer."""
        return self._fingerprints is not None and self._fingerprints.is_of(message)

    # --- requests ----------------------------------------------------------------------------------------------------

    def ask(self, hashes: PrefixHashes, messages: list[Message]) -> None:
        """The next request has come. A prefetch for this conversation must stop."""
        before, self.hashes = self.hashes, hashes
        self.is_rewritten = False
        self.is_asking, self.used_at = True, anyio.current_time()
        if before is not None:
            self._compare(before, hashes, messages)
        self.sink.signal(AboutToResume(self.name))
        self._end_wait()

    def _compare(self, before: PrefixHashes, hashes: PrefixHashes, messages: list[Message]) -> None:
        kept = before.common(hashes)
        if kept < len(before):
            self.is_rewritten = True
            self.sink.signal(HistoryRewritten(self.name, kept))
        elif self._fingerprints is not None and len(messages) > kept and messages[kept].get("role") == "assistant":
            self.message_format = self._fingerprints.learn(messages[kept], self.message_format)

    def _end_wait(self) -> None:
        self.pending, self._fingerprints = (), None
        self.running.clear()
        self._began = self._ended = 0
        self._is_reported = False

    def leave(self) -> None:
        """The request failed, or its answer is not a turn."""
        self.is_asking, self.used_at = False, anyio.current_time()

    def finish(
        self, answer: TappedAnswer, messages: list[Message], body: Json, endpoint: str, *, is_turn: bool
    ) -> None:
        """The answer is complete. body: the fields that shape prompts. is_turn: it will stand in history unchanged."""
        self.leave()
        self.turns += 1
        self.sink.signal(Resumed(self.name, answer.usage, answer.ttft))
        if not is_turn:
            return
        self._fingerprints = fingerprints_of(answer.text, answer.reasoning, answer.calls)
        self.pending = pending_tool_calls(answer.text, answer.calls)
        self.has_called = self.has_called or bool(self.pending)
        if self.pending or self.task_id is not None:
            prompt = (*messages, self.message_format.message(answer.text, answer.reasoning, answer.calls))
            self.sink.signal(TurnFinished(self.name, Prompt(prompt, body, endpoint), answer.usage, answer.ttft))
            self._is_reported = True
            if self.running:  # begun while the answer was still coming
                self._report_wait()

    # --- the hub's calls ---------------------------------------------------------------------------------------------

    def call_began(self, tool: Tool) -> None:
        self.running.append(tool)
        self._began += 1
        if self._is_reported:
            self._report_wait()

    def call_ended(self, tool: Tool, seconds: float) -> None:
        """Report a call's end. A call of an earlier turn is ignored, because it does not affect this wait."""
        if tool not in self.running:
            return
        self.running.remove(tool)
        self._ended += 1
        if self._is_reported:
            left = max(len(self.running), len(self.pending) - self._ended)
            self.sink.signal(ToolResultReady(self.name, *tool, seconds, left))

    def _report_wait(self) -> None:
        """Report the running calls and those not yet begun: some agents run the calls one by one."""
        missing = max(0, len(self.pending) - self._began)
        later = tuple((each.server, each.name) for each in self.pending[len(self.pending) - missing :])
        self.sink.signal(ToolWaitStarted(self.name, (*self.running, *later)))

    def close(self) -> None:
        """No request follows."""
        self._end_wait()
        self.sink.signal(SessionFinal(self.name))


# --- All conversations ------------------------------------------------------------------------------------------------
# All conversations of the proxy: finds or begins them, assigns the hub's calls to them, ends them.


TASK_HEADER = b"x-toolhub-task"
_SESSION_HEADERS = tuple(name.lower().encode() for name in SESSION_HEADERS)
# A conversation without a request or a running call for this long is over. Agents pause for minutes, tools for longer.
IDLE_SESSION_S = 1800.0
# How often the registry checks for closed tasks, while some conversation has one.
CHECK_TASKS_S = 2.0
# A request with more messages is not followed: it would only fill the index.
MAX_MESSAGES = 20_000


class SessionRegistry:
    """The conversations, and the observer that assigns the hub's calls to them."""

    def __init__(
        self, hub: Hub, sink: HintSink, *, forget: Callable[[str], None], ended: Callable[[str], None]
    ) -> None:
        """forget: called with an affinity that no conversation uses any more. ended: with an ended one's name."""
        self._hub = hub
        self._sink = sink
        self._forget = forget
        self._ended = ended
        self._index = SessionMatcher()
        self._by_name: dict[str, ProxySession] = {}
        self._by_task: dict[str | None, set[ProxySession]] = {}
        self._by_affinity: dict[str, int] = {}
        self._calls: dict[str, ProxySession] = {}
        self._message_format = AssistantMessageFormat()
        self._changed = anyio.Event()

    def __repr__(self) -> str:
        return f"<SessionRegistry {len(self._by_name)} conversations, {len(self._calls)} calls>"

    def __len__(self) -> int:
        return len(self._by_name)

    # --- requests ----------------------------------------------------------------------------------------------------

    def request(self, headers: Sequence[Header], messages: list[Message]) -> ProxySession | None:
        """The conversation that these messages belong to, updated with them; None if it is not followed."""
        if len(messages) > MAX_MESSAGES:
            return None
        group = session_name(headers)
        hashes = prefix_hashes(messages, group=group)
        conversation = self._index.find(hashes, messages, named=bool(group))
        if conversation is None:
            conversation = self._begin(group, headers)
        if conversation.task_id is None and (task_id := self._task_named(headers, group)) is not None:
            self._tie(conversation, task_id)
        conversation.ask(hashes, messages)
        self._message_format = conversation.message_format
        self._index.note(conversation, hashes)
        self._make_room()
        return conversation

    def share_of(self, conversation: ProxySession) -> FairShareKey:
        """The run, and its weight, of the task that the conversation belongs to."""
        keys = (task.share_key for task in self._hub.tasks if task.id == conversation.task_id)
        return next(keys, FairShareKey())

    def names_of(self, task_id: str) -> list[str]:
        """The conversations that belong to this task of the hub."""
        return [conversation.name for conversation in self._by_task.get(task_id, ())]

    def headers_of(self, name: str) -> dict[str, str]:
        """The headers of a conversation's own requests."""
        conversation = self._by_name.get(name)
        return dict(conversation.headers) if conversation else {}

    def _begin(self, group: str, headers: Iterable[Header]) -> ProxySession:
        name, number = group or f"llm-proxy-{uuid4().hex[:16]}", 1
        affinity = name
        while name in self._by_name:
            number += 1
            name = f"{group}~{number}"
        given = {key: value for key in _SESSION_HEADERS if (value := header_text(headers, key))}
        own = {key: given.get(key.lower().encode(), value) for key, value in session_headers(name).items()}
        conversation = ProxySession(name, affinity, self._sink, headers=own, message_format=self._message_format)
        self._by_name[name] = conversation
        self._by_task.setdefault(None, set()).add(conversation)
        self._by_affinity[affinity] = self._by_affinity.get(affinity, 0) + 1
        self._changed.set()
        return conversation

    def _tie(self, conversation: ProxySession, task_id: str) -> None:
        self._untie(conversation)
        conversation.task_id = task_id
        self._by_task.setdefault(task_id, set()).add(conversation)
        self._changed.set()

    def _task_named(self, headers: Iterable[Header], group: str) -> str | None:
        """The open task that a header names, or whose id a session's name begins with (MiroFlow: id, `-`, uuid4)."""
        open_ids = {task.id for task in self._hub.tasks} if group else set()
        named = header_text(headers, TASK_HEADER)
        if named in open_ids:
            return named
        return max((each for each in open_ids if group == each or group.startswith(f"{each}-")), key=len, default=None)

    def _untie(self, conversation: ProxySession) -> None:
        alike = self._by_task[conversation.task_id]
        alike.discard(conversation)
        if not alike:
            del self._by_task[conversation.task_id]

    # --- the hub's calls (an Observer) -------------------------------------------------------------------------------

    def began(self, call: Call) -> None:
        if not self._by_name:
            return
        conversation = self._asked_for(call)
        if conversation is not None:
            if conversation.task_id is None:
                self._tie(conversation, call.task_id)
            self._calls[call.id] = conversation
            conversation.call_began((call.server, call.tool))

    def ended(self, call: Call, outcome: str, seconds: float) -> None:
        conversation = self._calls.pop(call.id, None)
        if conversation is not None:
            conversation.call_ended((call.server, call.tool), seconds)

    def _asked_for(self, call: Call) -> ProxySession | None:
        digest = arguments_digest(call.arguments)
        maybe = [*self._by_task.get(call.task_id, ()), *self._by_task.get(None, ())]
        ranked = [(_match_rank(each, call, digest), each.used_at, each) for each in maybe]
        best = max(ranked, key=lambda entry: entry[:2], default=None)
        return best[2] if best is not None and best[0] else None

    # --- ends --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """End conversations that are over. Sleep while there are none, or none can be over yet."""
        looked_at = anyio.current_time()
        while True:
            self._changed = anyio.Event()
            with anyio.move_on_at(looked_at + self._patience()):
                await self._changed.wait()
                continue
            looked_at = anyio.current_time()
            for conversation in self._over():
                self.close(conversation)

    def close(self, conversation: ProxySession) -> None:
        self._index.drop(conversation)
        if self._by_name.pop(conversation.name, None) is None:
            return
        conversation.close()
        self._ended(conversation.name)
        self._untie(conversation)
        self._by_affinity[conversation.affinity] -= 1
        if not self._by_affinity[conversation.affinity]:
            del self._by_affinity[conversation.affinity]
            self._forget(conversation.affinity)

    def _patience(self) -> float:
        """Seconds between two checks."""
        if not self._by_name:
            return float("inf")
        return CHECK_TASKS_S if self._by_task.keys() - {None} else IDLE_SESSION_S

    def _over(self) -> list[ProxySession]:
        now, tasks = anyio.current_time(), {None, *(task.id for task in self._hub.tasks)}
        return [
            each
            for each in self._by_name.values()
            if not each.is_asking
            and (each.task_id not in tasks or (not each.running and each.used_at + IDLE_SESSION_S <= now))
        ]

    def _make_room(self) -> None:
        while (surplus := self._index.surplus()) is not None:
            self.close(surplus)


def session_name(headers: Iterable[Header]) -> str:
    """The client's name for its session; "" if it sends none."""
    for name in (*_SESSION_HEADERS, TASK_HEADER):
        if value := header_text(headers, name):
            return header_value(value)
    return ""


def _match_rank(conversation: ProxySession, call: Call, digest: bytes) -> int:
    """How likely the call belongs to that conversation; 0: it does not."""
    is_of_task = conversation.task_id is not None
    if not conversation.has_unstarted_calls:
        return int(is_of_task)
    named = [each for each in conversation.pending if each.may_be(call.tool)]
    if any(each.arguments == digest for each in named):
        return 4 + is_of_task
    if named:
        return 2 + is_of_task
    return int(is_of_task)
