"""How many requests an endpoint gets at once: follows the engine's own queue (AIMD, as TCP does). Pure.

More requests than the engine runs only wait inside it, where they can neither be reordered nor moved; fewer leave it
idle. So: up while all slots are used and nothing waits there, down when more than `target_waiting` wait.
"""

from __future__ import annotations

from dataclasses import dataclass

START = 64
LEAST, MOST = 1, 1024
# Of the cut when too many wait, and of the growth before the first cut (then it is one more per reading).
CUT, GROWTH = 0.75, 1.25
# Above this share of KV memory one more request would only preempt another.
FULL = 0.95


@dataclass(frozen=True, slots=True)
class Reading:
    """What an engine tells of itself. usage: share of its KV memory that running requests hold, 0 to 1."""

    waiting: int
    running: int
    usage: float = 0.0


@dataclass(frozen=True, slots=True)
class Limit:
    """slots: at once. is_probing: nothing has ever waited, so it grows fast."""

    slots: int = START
    is_probing: bool = True


def follow(limit: Limit, reading: Reading | None, *, in_use: int, target_waiting: int) -> Limit:
    """The limit after one reading. in_use: slots held now. None: the engine tells nothing, so the start value."""
    if reading is None:
        return Limit()
    if reading.waiting > target_waiting:
        # What is above an earlier cut must run out first: cutting again for it would go down to one.
        return Limit(max(LEAST, int(limit.slots * CUT)), False) if in_use <= limit.slots else limit
    if in_use < limit.slots or reading.waiting > 0 or reading.usage >= FULL:
        return limit
    grown = int(limit.slots * GROWTH) if limit.is_probing else 0
    return Limit(min(MOST, max(limit.slots + 1, grown)), limit.is_probing)
