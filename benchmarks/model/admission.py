"""Who may begin a turn at a modelled engine: everyone, a fixed number of tasks, or toolhub's ledger of tokens.

All have the methods of `TokenLedger`, which is the one that toolhub's client and LLM proxy use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from toolhub_agent.admission.ledger import State, TokenLedger
from toolhub_agent.types import Usage

from benchmarks.model.engine import Clock

# As toolhub's client and proxy do while turns wait.
_SCHEDULE_EVERY_S = 1.0


class Policy(Protocol):
    """What these methods do and return is said at `TokenLedger`."""

    def begin_turn(
        self,
        name: str,
        *,
        prompt_tokens: int | None = None,
        prefix: str = "",
        prefix_tokens: int = 0,
        is_rewritten: bool = False,
    ) -> tuple[str, ...]: ...

    def end_turn(self, name: str, usage: Usage) -> tuple[str, ...]: ...

    def remove(self, name: str) -> tuple[str, ...]: ...

    def schedule(self) -> tuple[str, ...]: ...


class AllAtOnce:
    """Every turn begins when it wants to."""

    def begin_turn(self, name: str, **_: Any) -> tuple[str, ...]:
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

    def begin_turn(self, name: str, **_: Any) -> tuple[str, ...]:
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


class SimulatedGate:
    """Begins turns when the policy admits them, in simulated time."""

    def __init__(self, clock: Clock, policy: Policy) -> None:
        self._clock = clock
        self._policy = policy
        self._waiting: dict[str, Callable[[], None]] = {}
        self._is_ticking = False

    def begin(
        self,
        name: str,
        then: Callable[[], None],
        *,
        prompt: int,
        prefix_tokens: int = 0,
        is_rewritten: bool = False,
    ) -> None:
        """then: called when the turn may begin. The rest is as for `TokenLedger.begin_turn`."""
        self._waiting[name] = then
        admitted = self._policy.begin_turn(
            name,
            prompt_tokens=prompt,
            prefix="shared" if prefix_tokens else "",
            prefix_tokens=prefix_tokens,
            is_rewritten=is_rewritten,
        )
        self._admit(admitted)
        if self._waiting and not self._is_ticking:
            self._is_ticking = True
            self._clock.at(self._clock.now + _SCHEDULE_EVERY_S, self._tick)

    def end(self, name: str, usage: Usage) -> None:
        self._admit(self._policy.end_turn(name, usage))

    def remove(self, name: str) -> None:
        self._admit(self._policy.remove(name))

    def may_warm(self, name: str) -> bool:
        """Whether a prefill-ahead makes sense: not for a conversation that has lost its place."""
        return not isinstance(self._policy, TokenLedger) or self._policy.state(name) is State.ACTING

    def pauses(self) -> int:
        """How often a task with a place lost it."""
        return sum(self._policy.statistics().pauses.values()) if isinstance(self._policy, TokenLedger) else 0

    def _tick(self) -> None:
        self._admit(self._policy.schedule())
        self._is_ticking = bool(self._waiting)
        if self._is_ticking:
            self._clock.at(self._clock.now + _SCHEDULE_EVERY_S, self._tick)

    def _admit(self, names: Iterable[str]) -> None:
        for name in names:
            self._waiting.pop(name)()
