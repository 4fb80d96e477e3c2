"""The blocks of an engine's KV cache: which conversation uses them, and which loses them first."""

from __future__ import annotations

from collections import OrderedDict

BLOCK = 16
"""Tokens of a block: vLLM's default on accelerators."""


def blocks_of(tokens: int, size: int = BLOCK) -> int:
    return -(-tokens // size)


class BlockCache:
    """`total` blocks: used by sequences, idle (of a conversation that may come back), or free.

    Idle blocks of a pinned conversation are taken only when there is no other way.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self.evicted = 0
        self.pins_yielded = 0
        self._idle: OrderedDict[str, int] = OrderedDict()
        self._pins: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<BlockCache {self.used} used, {self.idle} idle, {self.free} free>"

    @property
    def idle(self) -> int:
        return sum(self._idle.values())

    @property
    def free(self) -> int:
        return self.total - self.used - self.idle

    def idle_of(self, conversation: str) -> int:
        return self._idle.get(conversation, 0)

    def spare(self, now: float, conversation: str | None = None) -> int:
        """Blocks that the conversation can get without breaking a pin of others, its own idle ones included."""
        self._pins = {name: until for name, until in self._pins.items() if until > now and name in self._idle}
        return self.total - self.used - sum(self._idle[name] for name in self._pins if name != conversation)

    def take(self, blocks: int) -> None:
        """Take blocks, idle ones if need be. Raises ValueError if there are too few."""
        if blocks > self.total - self.used:
            raise ValueError(f"{blocks} blocks wanted of {self!r}")
        missing = blocks - self.free
        while missing > 0:
            missing -= self._evict(missing)
        self.used += blocks

    def claim(self, conversation: str, most: int) -> int:
        """The conversation's first idle blocks become used, up to `most` of them; its others become free."""
        self._pins.pop(conversation, None)
        kept = min(self._idle.pop(conversation, 0), most)
        self.used += kept
        return kept

    def give(self, conversation: str, blocks: int, worth: int) -> None:
        """Used blocks come back; the first `worth` of them stay idle for the conversation, the rest is free."""
        self.used -= blocks
        if worth > 0:
            self._idle[conversation] = worth
            self._idle.move_to_end(conversation)

    def pin(self, conversation: str, until: float) -> None:
        """Pin the conversation's idle blocks. It replaces an earlier pin."""
        if conversation in self._idle:
            self._pins[conversation] = until

    def release(self, conversation: str) -> None:
        self._pins.pop(conversation, None)
        self._idle.pop(conversation, None)

    def yield_pin(self) -> bool:
        """Give up the oldest pin. Return False if there is none."""
        if not self._pins:
            return False
        del self._pins[next(iter(self._pins))]
        self.pins_yielded += 1
        return True

    def _evict(self, wanted: int) -> int:
        """Evict blocks from the end of the least recently used conversation."""
        name = next((name for name in self._idle if name not in self._pins), None)
        if name is None:
            self.yield_pin()
            return 0
        taken = min(self._idle[name], wanted)
        self._idle[name] -= taken
        if not self._idle[name]:
            del self._idle[name]
        self.evicted += taken
        return taken
