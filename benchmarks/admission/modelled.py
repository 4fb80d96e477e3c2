"""The agents of a `Workload` on the modelled engine, under the same policies as on a real one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolhub_agent.types import Usage

from benchmarks.admission.programs import AgentReport, AgentTrace, PolicyChoice, RunReport
from benchmarks.model.admission import SimulatedGate
from benchmarks.model.costs import EngineCosts
from benchmarks.model.engine import Clock, Engine, EngineRequest


@dataclass(frozen=True)
class ModelledEngine:
    """blocks: of `block` tokens each. budget: tokens of a step. shared: tokens that all prompts begin with."""

    costs: EngineCosts
    blocks: int
    block: int
    budget: int
    shared: int

    @property
    def capacity(self) -> int:
        return self.blocks * self.block


def simulate(traces: Sequence[AgentTrace], choice: PolicyChoice, site: ModelledEngine) -> RunReport:
    """All agents begin at once."""
    clock = Clock()
    engine = Engine(clock, site.costs, blocks=site.blocks, block=site.block, shared=site.shared, budget=site.budget)
    gate = SimulatedGate(clock, choice.make(site.capacity, lambda: clock.now))
    agents = [_Agent(trace, engine, gate, site.shared) for trace in traces]
    for agent in agents:
        agent.ask()
    clock.run()
    return RunReport([agent.report for agent in agents], gate.pauses())


class _Agent:
    def __init__(self, trace: AgentTrace, engine: Engine, gate: SimulatedGate, shared: int) -> None:
        self.report = AgentReport()
        self._name = trace.name
        self._turns = trace.turns
        self._engine = engine
        self._gate = gate
        self._shared = shared
        self._kept = 0

    def ask(self) -> None:
        turn = self._turns[len(self.report.usages)]
        self._gate.begin(self._name, self._admitted, prompt=turn.prompt, prefix_tokens=self._shared)

    def _admitted(self) -> None:
        turn = self._turns[len(self.report.usages)]
        self._engine.request(self._name, turn.prompt, reusable=self._kept, decode=turn.answer, done=self._answered)

    def _answered(self, request: EngineRequest) -> None:
        clock, report = self._engine.clock, self.report
        wait_s = self._turns[len(report.usages)].wait_s
        usage = Usage(request.prompt, request.decode, request.cached)
        report.usages.append(usage)
        self._gate.end(self._name, usage)
        # A client sends the answer's text, and an engine may read other tokens from it than it has written.
        self._kept = request.prompt
        if len(report.usages) < len(self._turns):
            clock.at(clock.now + wait_s, self.ask)
        else:
            report.task_s = clock.now
            self._gate.remove(self._name)
