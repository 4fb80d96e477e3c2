"""Agents that begin together and use one model server, the policies that let their turns begin, and what came of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from toolhub_agent.admission.ledger import TokenLedger
from toolhub_agent.types import Usage

from benchmarks.common.result import Json
from benchmarks.model.admission import AllAtOnce, AtMost, Policy


@dataclass(frozen=True)
class AgentTurn:
    """prompt: tokens of the whole prompt. answer: tokens. wait_s: of the tool that the answer calls; 0 at the end."""

    prompt: int
    answer: int
    wait_s: float


@dataclass(frozen=True)
class AgentTrace:
    name: str
    turns: tuple[AgentTurn, ...]

    def as_counted(self, usages: Sequence[Usage]) -> AgentTrace:
        """The same agent with the tokens that an engine counted."""
        counted = zip(self.turns, usages, strict=True)
        turns = [replace(turn, prompt=used.prompt_tokens, answer=used.completion_tokens) for turn, used in counted]
        return replace(self, turns=tuple(turns))


@dataclass(frozen=True)
class Workload:
    """Sizes are tokens. shared: what all prompts begin with. question: what each agent's first prompt adds to it.

    result: of a tool. answer: of the model, at each turn. wait_s: a tool's mean seconds, exponentially distributed.
    """

    wait_s: float
    agents: int = 16
    turns: int = 8
    shared: int = 1024
    question: int = 180
    result: int = 420
    answer: int = 24

    def traces(self) -> list[AgentTrace]:
        """The same each time. Those of workloads with other wait_s have the same waits in proportion."""
        return [self._trace(number) for number in range(self.agents)]

    def _trace(self, number: int) -> AgentTrace:
        pick = random.Random(f"agent {number}")
        waits = [self.wait_s * pick.expovariate(1) for _ in range(self.turns - 1)]
        first, grows = self.shared + self.question, self.answer + self.result
        turns = [AgentTurn(first + grows * turn, self.answer, wait_s) for turn, wait_s in enumerate([*waits, 0.0])]
        return AgentTrace(f"agent-{number}", tuple(turns))


@dataclass
class AgentReport:
    """task_s: since all agents began."""

    task_s: float = 0.0
    usages: list[Usage] = field(default_factory=list)


@dataclass(frozen=True)
class RunReport:
    """What one policy did with a workload. pauses: how often an agent lost its place; None: not known."""

    agents: Sequence[AgentReport]
    pauses: int | None = 0

    @property
    def makespan_s(self) -> float:
        return max(agent.task_s for agent in self.agents)

    @property
    def mean_task_s(self) -> float:
        return sum(agent.task_s for agent in self.agents) / len(self.agents)

    @property
    def usages(self) -> list[Usage]:
        return [usage for agent in self.agents for usage in agent.usages]

    @property
    def shared(self) -> int:
        """Tokens that the prompts begin with together: what first turns found in an empty cache."""
        return max(agent.usages[0].cached_tokens or 0 for agent in self.agents)

    @property
    def prompt(self) -> int:
        return sum(usage.prompt_tokens for usage in self.usages)

    @property
    def computed(self) -> int:
        """Prompt tokens that were not in the cache."""
        return self.prompt - sum(usage.cached_tokens or 0 for usage in self.usages)

    @property
    def cached_percent(self) -> float:
        return 100 * (1 - self.computed / self.prompt)

    def to_json(self) -> Json:
        return {
            "makespan_s": self.makespan_s,
            "mean_task_s": self.mean_task_s,
            "prompt": self.prompt,
            "computed": self.computed,
            "pauses": self.pauses,
            "task_s": [agent.task_s for agent in self.agents],
        }


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
