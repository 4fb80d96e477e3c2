"""Pins: KV blocks that are kept for a while after the request that filled them. No I/O; calls two methods of the pool.

The pool counts the references of each block and never reuses a block that has any. All pins of a block together add one
reference, however many there are (conversations share the system prompt). So a pinned block with exactly one reference
is kept by pins alone.

Under pressure the pin that would expire soonest yields first: its client asked for the shortest remaining time. Its
blocks are not lost at once: they become the pool's most recently used blocks.

At the cap a new pin is refused; no old pin is dropped for it. If there are more conversations than room, dropping would
evict every one shortly before its next turn. Refusing keeps as many as fit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

# --- Requests for pins ------------------------------------------------------------------------------------------------
# Clients can send anything in `vllm_xargs`, so invalid values are ignored.

MAX_SESSION_CHARS = 256
# ("session", id) or ("request", id), so that a session cannot have the key of a request.
PinKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PinRequest:
    """Keep this request's blocks. ttl: seconds after its end."""

    key: PinKey
    ttl: float


def pin_request(extra: Mapping[str, Any] | None, request_id: str, *, max_ttl: float) -> PinRequest | None:
    """The pin that a request asks for. A request that releases a session is never pinned."""
    if not extra or "release_session" in extra:
        return None
    ttl = _seconds(extra.get("pin_ttl_s"))
    key = _session_key(extra["session_id"]) if "session_id" in extra else ("request", request_id)
    return PinRequest(key, min(ttl, max_ttl)) if key is not None and min(ttl, max_ttl) > 0 else None


def released_key(extra: Mapping[str, Any] | None) -> PinKey | None:
    """The session whose pin a request ends."""
    return _session_key(extra["release_session"]) if extra and "release_session" in extra else None


def session_key(extra: Mapping[str, Any] | None) -> PinKey | None:
    """The session that a request belongs to."""
    return _session_key(extra["session_id"]) if extra and "session_id" in extra else None


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    try:
        seconds = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def _session_key(session: object) -> PinKey | None:
    is_name = isinstance(session, str) and 0 < len(session) <= MAX_SESSION_CHARS and session.isprintable()
    return ("session", str(session)) if is_name else None


# --- Pins -------------------------------------------------------------------------------------------------------------

PinEvent = Literal["held", "replaced", "expired", "released", "yielded", "refused", "reset"]
PIN_EVENTS: tuple[PinEvent, ...] = ("held", "replaced", "expired", "released", "yielded", "refused", "reset")


class Block(Protocol):
    """block_id: unique in its pool. ref_cnt: the requests that use it, plus one while it is pinned."""

    @property
    def block_id(self) -> int: ...
    @property
    def ref_cnt(self) -> int: ...


B = TypeVar("B", bound=Block)
BlockT = TypeVar("BlockT", bound=Block, contravariant=True)
T = TypeVar("T")


class Pool(Protocol[BlockT]):
    """The part of vLLM's BlockPool that is used here."""

    def touch(self, blocks: Sequence[BlockT]) -> None:
        """Add a reference to each block. A free block is then no longer free."""

    def free_blocks(self, ordered_blocks: Iterable[BlockT]) -> None:
        """Remove a reference from each block. Of those left without any, the first is evicted first."""


@dataclass(frozen=True, slots=True)
class PinStatistics:
    """pins, blocks: held now. events: how often each event happened."""

    pins: int
    blocks: int
    events: Mapping[PinEvent, int]


@dataclass(frozen=True, slots=True)
class _Pin(Generic[B]):
    blocks: tuple[B, ...]
    expires: float


class Pins(Generic[B]):
    """The pins of one pool. Not thread-safe: it belongs to the scheduler."""

    def __init__(self, pool: Pool[B], *, cap_blocks: int, clock: Callable[[], float]) -> None:
        """cap_blocks: pinned at once; also how many pins there may be. clock: seconds."""
        self._pool = pool
        self._cap = cap_blocks
        self._clock = clock
        self._pins: dict[Hashable, _Pin[B]] = {}
        self._holders: Counter[int] = Counter()
        self._events: Counter[PinEvent] = Counter()
        self._earliest = float("inf")

    def __repr__(self) -> str:
        return f"<Pins {len(self._pins)} of {len(self._holders)}/{self._cap} blocks>"

    def __len__(self) -> int:
        return len(self._pins)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._pins

    def statistics(self) -> PinStatistics:
        return PinStatistics(len(self._pins), len(self._holders), {event: self._events[event] for event in PIN_EVENTS})

    def hold(self, key: Hashable, blocks: Iterable[B], ttl: float) -> bool:
        """Keep blocks for ttl seconds. They replace the key's earlier blocks. blocks: the prefix first.

        Each must have a reference now. Returns False at the cap; the key's earlier blocks then stay pinned.
        """
        pin = _Pin(tuple({block.block_id: block for block in blocks}.values()), self._clock() + ttl)
        if not pin.blocks:
            return False
        old = self._pins.get(key)
        if not self._fits(pin, old):
            self._events["refused"] += 1
            return False
        self._add(pin)  # before the old blocks are released, because most are the same
        if old is not None:
            self._remove(old)
            self._events["replaced"] += 1
        self._pins[key] = pin
        self._events["held"] += 1
        self._look_at_clock()
        return True

    def expire(self) -> None:
        """End the pins that have expired."""
        if (now := self._clock()) < self._earliest:
            return
        self._drop([key for key, pin in self._pins.items() if pin.expires <= now], "expired")

    def release(self, key: Hashable) -> bool:
        """End the key's pin, if it has one."""
        if key not in self._pins:
            return False
        self._drop([key], "released")
        return True

    def clear(self) -> None:
        """End all pins, because their blocks are about to become useless."""
        self._drop(list(self._pins), "reset")

    def make_room(self, attempt: Callable[[], T | None], *, last: Hashable = None) -> T | None:
        """Let pins yield one by one until attempt() returns something; return that.

        If it never does, all pins are restored. So an attempt that fails must not take blocks. last: the key whose pin
        yields after all others, because the attempt may need its blocks.
        """
        order = sorted(self._pins, key=lambda key: (key == last, self._pins[key].expires))
        yielded: dict[Hashable, _Pin[B]] = {}
        for key in order:
            if all(block.ref_cnt > 1 for block in self._pins[key].blocks):
                continue  # requests use all of its blocks, so none would become free
            yielded[key] = self._pins.pop(key)
            self._remove(yielded[key])
            if (made := attempt()) is not None:
                self._events["yielded"] += len(yielded)
                self._look_at_clock()
                return made
        for key, pin in yielded.items():
            self._add(pin)
            self._pins[key] = pin
        return None

    def _fits(self, pin: _Pin[B], old: _Pin[B] | None) -> bool:
        if old is None:
            if len(self._pins) >= self._cap:
                return False
            old = _Pin((), 0.0)
        new = {block.block_id for block in pin.blocks}
        gone = {block.block_id for block in old.blocks if self._holders[block.block_id] == 1} - new
        return len(self._holders) - len(gone) + sum(number not in self._holders for number in new) <= self._cap

    def _drop(self, keys: Iterable[Hashable], event: PinEvent) -> None:
        for key in keys:
            self._remove(self._pins.pop(key))
            self._events[event] += 1
        self._look_at_clock()

    def _add(self, pin: _Pin[B]) -> None:
        self._pool.touch([block for block in pin.blocks if block.block_id not in self._holders])
        self._holders.update(block.block_id for block in pin.blocks)

    def _remove(self, pin: _Pin[B]) -> None:
        self._holders.subtract(block.block_id for block in pin.blocks)
        freed = [block for block in pin.blocks if not self._holders[block.block_id]]
        for block in freed:
            del self._holders[block.block_id]
        self._pool.free_blocks(reversed(freed))  # evict from the end: a prefix without its end is still usable

    def _look_at_clock(self) -> None:
        self._earliest = min((pin.expires for pin in self._pins.values()), default=float("inf"))
