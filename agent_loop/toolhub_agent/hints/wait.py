"""One tool wait: which tools still run, what was warmed, when to look again. Times are on the anyio clock."""

from __future__ import annotations

from dataclasses import dataclass

from toolhub_agent.hints.durations import Durations
from toolhub_agent.hints.timing import WORTHWHILE_TOKENS, Plan, Skip, plan


@dataclass(eq=False)
class ToolWait:
    """started: absolute. reusable: tokens of the last prompt, which the next one should find in the cache."""

    started: float
    tools: list[tuple[str, str]]
    reusable: int
    warms: int = 0
    new_at_warm: int = 0
    due: float | None = None
    due_to_warm: bool = False
    reason: Skip | None = None
    """Why there was no warm so far."""
    is_closed: bool = False
    """No more warms, whatever happens."""
    is_compared: bool = False
    """Its next turn counts for the gain."""
    is_tainted: bool = False
    """The prompt was rewritten meanwhile, so what the next turn finds says nothing about evictions."""
    warmed_tokens: int | None = None
    """Of the prompt of the last warm that ended in time."""

    def began(self, tools: tuple[tuple[str, str], ...]) -> None:
        """More calls of the same turn."""
        self.tools = list(tools)

    def ended(self, tool: tuple[str, str]) -> None:
        if tool in self.tools:
            self.tools.remove(tool)

    def plan(self, now: float, durations: Durations, *, needed: float, new_tokens: int, most: int) -> None:
        """Set `due`. needed: seconds of a warm and its margin; new_tokens: of results, behind the last prompt."""
        if self.is_closed or not self.tools or self.warms >= most:
            self.due = None
            return
        warmed = self.warms > 0 and new_tokens - self.new_at_warm < WORTHWHILE_TOKENS
        elapsed = now - self.started
        self._set(plan(elapsed, durations.forecast(self.tools), needed, warmed=warmed))

    def skip(self, reason: Skip, *, for_good: bool = False) -> None:
        """What was due is not done. Without `for_good`, new results or late tools may change that."""
        self.reason, self.due = reason, None
        self.is_closed = self.is_closed or for_good

    def why_none(self) -> Skip | None:
        """At its end: why nothing was warmed; None if something was."""
        return None if self.warms else self.reason or Skip.NO_PROMPT

    def _set(self, found: Plan) -> None:
        self.due, self.due_to_warm = self.started + found.at, found.warm
        if not self.warms:
            self.reason = Skip.RESUMED_FIRST if found.warm else Skip.SHORT_WAIT
