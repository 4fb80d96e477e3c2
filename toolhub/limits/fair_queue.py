"""A fair queue: deficit round robin between runs, and within a run between its tasks.

In each round a run (or task) earns its weight as credit, and one unit of credit takes one item. So every run gets a
share in proportion to its weight, however many items the others queued. An item waits at most one round for each item
of its own task before it. No clock, no event loop.

Deficit round robin: M. Shreedhar and G. Varghese, SIGCOMM 1995; here every item costs one unit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from toolhub.model import FairShareKey

T = TypeVar("T")


@dataclass(eq=False)
class _Flow(Generic[T]):
    """The items of one task, oldest first."""

    weight: float
    credit: float = 0.0
    items: OrderedDict[int, T] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(eq=False)
class _Group(Generic[T]):
    """The tasks of one run that have items, in the order of their turns."""

    weight: float
    credit: float = 0.0
    flows: OrderedDict[str, _Flow[T]] = field(default_factory=OrderedDict)
    size: int = 0

    def __len__(self) -> int:
        return self.size


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """Identifies a queued item, so that it can be removed before its turn."""

    run: str
    task: str
    number: int


class FairQueue(Generic[T]):
    """Items by run and task. `pop()` takes them in fair order."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, _Group[T]] = OrderedDict()
        self._number = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"<FairQueue {self._size} of {len(self._groups)} runs>"

    def push(self, item: T, share_key: FairShareKey) -> Ticket:
        """Queue an item behind those of the same task. The newest weights count."""
        group = self._groups.setdefault(share_key.run, _Group(share_key.run_weight))
        flow = group.flows.setdefault(share_key.task, _Flow(share_key.weight))
        group.weight, flow.weight = share_key.run_weight, share_key.weight
        self._number += 1
        flow.items[self._number] = item
        group.size += 1
        self._size += 1
        return Ticket(share_key.run, share_key.task, self._number)

    def pop(self) -> T:
        """Remove and return the next item in fair order. Raises IndexError when there is none."""
        if not self._size:
            raise IndexError("the queue is empty")
        run, group = _turn(self._groups)
        task, flow = _turn(group.flows)
        _, item = flow.items.popitem(last=False)
        _spend(self._groups, run, group)
        _spend(group.flows, task, flow)
        self._shrink(run, group, task, flow)
        return item

    def __iter__(self) -> Iterator[T]:
        """Iterate over every item, in no particular order."""
        for group in self._groups.values():
            for flow in group.flows.values():
                yield from flow.items.values()

    def remove(self, ticket: Ticket) -> bool:
        """Take an item out before its turn; False when it has been taken."""
        group = self._groups.get(ticket.run)
        flow = group.flows.get(ticket.task) if group is not None else None
        if group is None or flow is None or flow.items.pop(ticket.number, None) is None:
            return False
        self._shrink(ticket.run, group, ticket.task, flow)
        return True

    def _shrink(self, run: str, group: _Group[T], task: str, flow: _Flow[T]) -> None:
        """Count one item less. A task or run without items loses its credit and its place in the round."""
        self._size -= 1
        group.size -= 1
        if not flow.items:
            del group.flows[task]
        if not group.flows:
            del self._groups[run]

    def waiting(self, share_key: FairShareKey) -> int:
        """Return how many items of this task are queued."""
        group = self._groups.get(share_key.run)
        flow = group.flows.get(share_key.task) if group is not None else None
        return len(flow) if flow is not None else 0

    def ahead_of(self, share_key: FairShareKey) -> int:
        """Estimate how many items are taken before one that this task would queue now."""
        own = self.waiting(share_key)
        group = self._groups.get(share_key.run)
        rounds = (own + 1) / share_key.weight
        ahead = float(own)
        if group is not None:
            others = (flow for task, flow in group.flows.items() if task != share_key.task)
            ahead += sum(min(len(flow), rounds * flow.weight) for flow in others)
        rounds = (ahead + 1) / share_key.run_weight
        rivals = (other for run, other in self._groups.items() if run != share_key.run)
        return int(ahead + sum(min(len(rival), rounds * rival.weight) for rival in rivals))

    def shed_longest(self, share_key: FairShareKey) -> T | None:
        """Remove the newest item of the task that queued most for its weight, to make room for the task `share_key`.

        Returns None when `share_key` itself, with the item it wants to add, would have queued most.
        """
        candidates = [
            (len(flow) / flow.weight / group.weight, run, task)
            for run, group in self._groups.items()
            for task, flow in group.flows.items()
        ]
        if not candidates:
            return None
        most, run, task = max(candidates)
        if (self.waiting(share_key) + 1) / share_key.weight / share_key.run_weight >= most:
            return None
        group = self._groups[run]
        flow = group.flows[task]
        _, item = flow.items.popitem(last=True)
        self._shrink(run, group, task, flow)
        return item


_Turning = TypeVar("_Turning", bound="_Flow[Any] | _Group[Any]")


def _turn(ring: OrderedDict[str, _Turning]) -> tuple[str, _Turning]:
    """Find the first whose credit pays for an item; move those before it to the end of the round."""
    while True:
        name, first = next(iter(ring.items()))
        if first.credit >= 1:
            return name, first
        first.credit += first.weight
        if first.credit >= 1:
            return name, first
        ring.move_to_end(name)


def _spend(ring: OrderedDict[str, _Turning], name: str, taker: _Turning) -> None:
    """Pay for one item; when the credit left pays for no other, the turn is over."""
    taker.credit -= 1
    if taker.credit < 1:
        ring.move_to_end(name)
