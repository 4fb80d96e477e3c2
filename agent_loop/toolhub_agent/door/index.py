"""Which conversation a request belongs to: the one that it has the longest beginning in common with.

Of each conversation the prefixes before and behind every answer are remembered by their hashes. A request belongs where
it holds the same answers; directly behind a conversation's latest request stands the answer that was given then, known
by its traces. Agents of one task (MiroFlow's header is the same for a main agent and its sub-agents) are told apart in
the same way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from toolhub_agent.door.chain import Chain
from toolhub_agent.door.conversation import Conversation
from toolhub_agent.model import Message

# More than an engine serves at once by far; a hash costs some 250 bytes.
MOST_CONVERSATIONS = 4096
MOST_HASHES = 200_000
# Conversations that began in the same way and are told apart by their answers.
MOST_ALIKE = 256


class Index:
    """Conversations by their prefixes; the least recently used go first."""

    def __init__(self) -> None:
        self._known: OrderedDict[Conversation, Chain] = OrderedDict()
        self._by_prefix: dict[bytes, list[Conversation]] = {}
        self._hashes = 0

    def __repr__(self) -> str:
        return f"<Index {len(self._known)} conversations, {self._hashes} hashes>"

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Conversation]:
        """Least recently used first."""
        return iter(list(self._known))

    def find(self, chain: Chain, messages: Sequence[Message], *, named: bool) -> Conversation | None:
        """None: it begins a new one. named: the client itself says that these requests belong together."""
        for length in reversed(chain.marks):
            found = self._by_prefix.get(chain.prefix(length))
            if found is None:
                continue
            if length == len(chain):
                return _asked_again(found, is_first=len(chain.marks) == 1, named=named)
            if messages[length - 1].get("role") == "assistant":
                return _latest(each for each in found if not each.is_asking)
            return _went_on(found, length, messages[length], named=named)
        return None

    def note(self, conversation: Conversation, chain: Chain) -> None:
        """The conversation's latest request."""
        old = self._known.pop(conversation, None)
        kept = 0 if old is None else old.common(chain)
        if old is not None:
            self._forget(conversation, old, beyond=kept)
        self._known[conversation] = chain
        known = {length for length in old.marks if length <= kept} if old is not None else set()
        for length in chain.marks:
            if length not in known:
                self._remember(conversation, chain.prefix(length))

    def drop(self, conversation: Conversation) -> None:
        chain = self._known.pop(conversation, None)
        if chain is not None:
            self._forget(conversation, chain, beyond=0)

    def surplus(self) -> Conversation | None:
        """One that must go, since there are too many; never one that is in use."""
        if len(self._known) <= MOST_CONVERSATIONS and self._hashes <= MOST_HASHES:
            return None
        return next((each for each in self._known if not each.is_in_use), None)

    def _remember(self, conversation: Conversation, prefix: bytes) -> None:
        alike = self._by_prefix.setdefault(prefix, [])
        alike.append(conversation)
        self._hashes += 1
        if len(alike) > MOST_ALIKE:
            alike.pop(0)
            self._hashes -= 1

    def _forget(self, conversation: Conversation, chain: Chain, *, beyond: int) -> None:
        for length in chain.marks:
            if length <= beyond:
                continue
            prefix = chain.prefix(length)
            alike = self._by_prefix.get(prefix, [])
            if conversation in alike:
                alike.remove(conversation)
                self._hashes -= 1
            if not alike:
                self._by_prefix.pop(prefix, None)


def _went_on(found: Sequence[Conversation], length: int, answer: Message, *, named: bool) -> Conversation | None:
    """Of those that asked this, the one that was given this answer; else the only one that may have been."""
    idle = [each for each in found if not each.is_asking]
    waiting = [each for each in idle if each.chain is not None and len(each.chain) == length]
    if (given := _latest(each for each in waiting if each.answered(answer))) is not None:
        return given
    if len(waiting) == 1:
        return waiting[0]  # its client has changed the answer
    return _latest(idle) if named else None  # its client has gone back


def _asked_again(found: Sequence[Conversation], *, is_first: bool, named: bool) -> Conversation | None:
    """The same request once more: the answer was thrown away, or another agent has the same task."""
    free = [each for each in found if not each.is_in_use]
    return _latest(free if named or not is_first else (each for each in free if each.turns == 0))


def _latest(found: Iterable[Conversation]) -> Conversation | None:
    return max(found, key=lambda each: each.used_at, default=None)
