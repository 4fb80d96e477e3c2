"""All conversations of the door: finds or begins them, gives them the hub's calls, ends them.

A call of the hub belongs to the conversation whose latest answer asks for it: the same tool with the same arguments.
That works also for agents that name nothing (MiroFlow's tools run under ids of their own). Where arguments were
corrected on the way, it is the conversation of the same task that waits for that tool, else the one that waits last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

import anyio

from toolhub.model import Call
from toolhub_agent.door.calls import arguments_digest
from toolhub_agent.door.chain import chain_of
from toolhub_agent.door.conversation import Conversation
from toolhub_agent.door.form import Form
from toolhub_agent.door.headers import Raw, value_of
from toolhub_agent.door.index import Index
from toolhub_agent.kv_hints.signals import HintSink
from toolhub_agent.llm.transport import SESSION_HEADERS, header_value, session_headers
from toolhub_agent.model import Message

if TYPE_CHECKING:
    from toolhub import Hub

TASK_HEADER = b"x-toolhub-task"
_SESSION_HEADERS = tuple(name.lower().encode() for name in SESSION_HEADERS)
# A conversation without a request or a running call for so long is over; agents pause for minutes, tools for longer.
IDLE_S = 1800.0
# How often tasks are looked at, but only while there are conversations of tasks.
LOOK_S = 2.0
# A request of more messages is no conversation; they would only fill the index.
MOST_MESSAGES = 20_000


class Registry:
    """Conversations, and the observer of the hub's calls that tells them of theirs."""

    def __init__(self, hub: Hub, sink: HintSink, *, forget: Callable[[str], None]) -> None:
        """forget: told of an affinity that no conversation has any more."""
        self._hub = hub
        self._sink = sink
        self._forget = forget
        self._index = Index()
        self._by_name: dict[str, Conversation] = {}
        self._by_task: dict[str | None, set[Conversation]] = {}
        self._by_affinity: dict[str, int] = {}
        self._calls: dict[str, Conversation] = {}
        self._form = Form()
        self._news = anyio.Event()

    def __repr__(self) -> str:
        return f"<Registry {len(self._by_name)} conversations, {len(self._calls)} calls>"

    def __len__(self) -> int:
        return len(self._by_name)

    # --- requests ----------------------------------------------------------------------------------------------------

    def request(self, headers: Sequence[Raw], messages: list[Message]) -> Conversation | None:
        """The conversation that these messages belong to, told that they have come; None where none is followed."""
        if len(messages) > MOST_MESSAGES:
            return None
        group = group_of(headers)
        chain = chain_of(messages, group=group)
        conversation = self._index.find(chain, messages, named=bool(group))
        if conversation is None:
            conversation = self._begin(group, headers)
        if conversation.task_id is None and (task_id := self._task_named(headers, group)) is not None:
            self._tie(conversation, task_id)
        conversation.ask(chain, messages)
        self._form = conversation.form
        self._index.note(conversation, chain)
        self._make_room()
        return conversation

    def headers_of(self, name: str) -> dict[str, str]:
        """Those of a conversation's own requests."""
        conversation = self._by_name.get(name)
        return dict(conversation.headers) if conversation else {}

    def _begin(self, group: str, headers: Iterable[Raw]) -> Conversation:
        name, number = group or f"llm-door-{uuid4().hex[:16]}", 1
        affinity = name
        while name in self._by_name:
            number += 1
            name = f"{group}~{number}"
        given = {key: value for key in _SESSION_HEADERS if (value := value_of(headers, key))}
        own = {key: given.get(key.lower().encode(), value) for key, value in session_headers(name).items()}
        conversation = Conversation(name, affinity, self._sink, headers=own, form=self._form)
        self._by_name[name] = conversation
        self._by_task.setdefault(None, set()).add(conversation)
        self._by_affinity[affinity] = self._by_affinity.get(affinity, 0) + 1
        self._news.set()
        return conversation

    def _tie(self, conversation: Conversation, task_id: str) -> None:
        self._untie(conversation)
        conversation.task_id = task_id
        self._by_task.setdefault(task_id, set()).add(conversation)
        self._news.set()

    def _task_named(self, headers: Iterable[Raw], group: str) -> str | None:
        """The open task that a header names, or whose id a session's name begins with (MiroFlow: id, `-`, uuid4)."""
        open_ids = {task.id for task in self._hub.tasks} if group else set()
        named = value_of(headers, TASK_HEADER)
        if named in open_ids:
            return named
        return max((each for each in open_ids if group == each or group.startswith(f"{each}-")), key=len, default=None)

    def _untie(self, conversation: Conversation) -> None:
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

    def _asked_for(self, call: Call) -> Conversation | None:
        digest = arguments_digest(call.arguments)
        maybe = [*self._by_task.get(call.task_id, ()), *self._by_task.get(None, ())]
        ranked = [(_rank(each, call, digest), each.used_at, each) for each in maybe]
        best = max(ranked, key=lambda entry: entry[:2], default=None)
        return best[2] if best is not None and best[0] else None

    # --- ends --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ends conversations that are over. Sleeps while there are none, and as long as none can be over."""
        looked_at = anyio.current_time()
        while True:
            self._news = anyio.Event()
            with anyio.move_on_at(looked_at + self._patience()):
                await self._news.wait()
                continue
            looked_at = anyio.current_time()
            for conversation in self._over():
                self.close(conversation)

    def close(self, conversation: Conversation) -> None:
        self._index.drop(conversation)
        if self._by_name.pop(conversation.name, None) is None:
            return
        conversation.close()
        self._untie(conversation)
        self._by_affinity[conversation.affinity] -= 1
        if not self._by_affinity[conversation.affinity]:
            del self._by_affinity[conversation.affinity]
            self._forget(conversation.affinity)

    def _patience(self) -> float:
        """Seconds from one look to the next."""
        if not self._by_name:
            return float("inf")
        return LOOK_S if self._by_task.keys() - {None} else IDLE_S

    def _over(self) -> list[Conversation]:
        now, tasks = anyio.current_time(), {None, *(task.id for task in self._hub.tasks)}
        return [
            each
            for each in self._by_name.values()
            if not each.is_asking and (each.task_id not in tasks or (not each.running and each.used_at + IDLE_S <= now))
        ]

    def _make_room(self) -> None:
        while (surplus := self._index.surplus()) is not None:
            self.close(surplus)


def group_of(headers: Iterable[Raw]) -> str:
    """What the client calls its session, "" if it does not."""
    for name in (*_SESSION_HEADERS, TASK_HEADER):
        if value := value_of(headers, name):
            return header_value(value)
    return ""


def _rank(conversation: Conversation, call: Call, digest: bytes) -> int:
    """How likely a call is that conversation's; 0: it is not."""
    is_of_task = conversation.task_id is not None
    if not conversation.wants_more:
        return int(is_of_task)
    named = [each for each in conversation.wanted if each.may_be(call.tool)]
    if any(each.arguments == digest for each in named):
        return 4 + is_of_task
    if named:
        return 2 + is_of_task
    return int(is_of_task)
