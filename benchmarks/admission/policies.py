"""The policies that are compared: all at once, a fixed number of tasks at a time, and toolhub's ledger of tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from toolhub_agent.admission.ledger import TokenLedger

from benchmarks.model.admission import AllAtOnce, AtMost, Policy

Now = Callable[[], float]


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
