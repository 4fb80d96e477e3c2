"""Who may begin a turn: all at once, a fixed number of tasks, or toolhub's ledger of tokens.

On the modelled engine all have the methods of `TokenLedger`. On a real one toolhub's client and proxy have the ledger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from toolhub_agent.admission.ledger import TokenLedger
from toolhub_agent.types import Usage

Now = Callable[[], float]


class Policy(Protocol):
    """What these methods do and return is said at `TokenLedger`."""

    def begin_turn(
        self, name: str, *, prompt_tokens: int | None = None, prefix: str = "", prefix_tokens: int = 0
    ) -> tuple[str, ...]: ...

    def end_turn(self, name: str, usage: Usage) -> tuple[str, ...]: ...

    def remove(self, name: str) -> tuple[str, ...]: ...

    def schedule(self) -> tuple[str, ...]: ...


class AllAtOnce:
    """Every turn begins when it wants to."""

    def begin_turn(
        self, name: str, *, prompt_tokens: int | None = None, prefix: str = "", prefix_tokens: int = 0
    ) -> tuple[str, ...]:
        return (name,)

    def end_turn(self, name: str, usage: Usage) -> tuple[str, ...]:
        return ()

    def remove(self, name: str) -> tuple[str, ...]:
        return ()

    def schedule(self) -> tuple[str, ...]:
        return ()


class AtMost(AllAtOnce):
    """So many tasks at a time, from their first turn to their last: a fixed concurrency."""

    def __init__(self, tasks: int) -> None:
        self._free = tasks
        self._begun: set[str] = set()
        self._waiting: deque[str] = deque()

    def begin_turn(
        self, name: str, *, prompt_tokens: int | None = None, prefix: str = "", prefix_tokens: int = 0
    ) -> tuple[str, ...]:
        if name in self._begun:
            return (name,)
        self._waiting.append(name)
        return self.schedule()

    def remove(self, name: str) -> tuple[str, ...]:
        self._free += 1
        return self.schedule()

    def schedule(self) -> tuple[str, ...]:
        admitted = []
        while self._free and self._waiting:
            self._free -= 1
            admitted.append(self._waiting.popleft())
        self._begun.update(admitted)
        return tuple(admitted)


@dataclass(frozen=True)
class PolicyChoice:
    """at_most: tasks at a time; None: any number. is_ledger: admission by the tokens of the cache.

    by_proxy: toolhub's LLM proxy does it, not its client.
    """

    at_most: int | None = None
    is_ledger: bool = False
    by_proxy: bool = False

    @property
    def label(self) -> str:
        if self.is_ledger:
            return "token ledger in the LLM proxy" if self.by_proxy else "token ledger"
        return "all at once" if self.at_most is None else f"at most {self.at_most} at a time"

    def make(self, capacity: int, now: Now) -> Policy:
        """capacity: tokens of the engine's cache. now: the clock on which the run takes place."""
        if self.is_ledger:
            return TokenLedger(capacity=capacity, now=now)
        return AllAtOnce() if self.at_most is None else AtMost(self.at_most)


ALL_AT_ONCE, LEDGER, PROXY_LEDGER = PolicyChoice(), PolicyChoice(is_ledger=True), PolicyChoice(None, True, True)


def pauses(policy: Policy) -> int:
    """How often a task with a place lost it."""
    return sum(policy.statistics().pauses.values()) if isinstance(policy, TokenLedger) else 0
