"""Many made-up tasks on modelled engines: where an agent's time goes, by what its runtime does.

Agents differ in how tools are called and in what the engine is told, never in what they ask: the same turns, results
and tool seconds for everyone, each conversation always at the same engine.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from toolhub_agent.admission.ledger import TokenLedger
from toolhub_agent.types import Usage

from benchmarks.common.measure import median
from benchmarks.common.result import Json
from benchmarks.model.admission import AllAtOnce, Policy, SimulatedGate
from benchmarks.model.cache import BLOCK
from benchmarks.model.costs import EngineCosts
from benchmarks.model.engine import Clock, Engine, EngineRequest, Statistics
from benchmarks.model.traces import TOOLS, TaskTrace, TraceCall, prompts

_THINKING = 0.6
"""The share of a turn's tokens before its first call. The calls share the rest evenly (assumed)."""
_WORTH_TOKENS = 512
"""A prefill-ahead that saves fewer tokens is not sent."""
_KNOWN = 0.98
"""If this share of the reusable tokens is cached, nothing counts as evicted."""
_MARGIN_S = 0.2
"""A prefill-ahead should end this long before the expected result."""


@dataclass(frozen=True)
class RuntimePolicy:
    """What an agent's runtime does.

    start_cpu_s: CPU seconds of starting a tool server, at least and at most; None: there is nothing to start.
    keeps_sessions: a task starts its `servers` side by side when it begins; otherwise one after another, to be told
    their tools, and then one for each call. call_s: of each call beside the tool. is_streamed: a call starts as soon
    as it is written, and those of one turn run at once. warms_rewritten: a prompt that will be cut back is computed
    while tools run, unless the last one was found to be evicted. warms_evicted: then the next one is computed shortly
    before tools end. pin_s: how long the cache holds what a finished turn left. at_once: tasks of one engine at a
    time, the others wait to begin; None: all. has_admission: turns wait for a place in the cache (`TokenLedger`).
    """

    name: str
    keep: int = 5
    stride: int = 0
    start_cpu_s: tuple[float, float] | None = None
    keeps_sessions: bool = True
    servers: int = 3
    call_s: float = 0.0
    is_streamed: bool = False
    warms_rewritten: bool = False
    warms_evicted: bool = False
    pin_s: float = 0.0
    at_once: int | None = None
    has_admission: bool = False


START_CPU_S = (0.33, 0.9)
"""CPU seconds of starting a server in Python, measured. Nearly all of it is the import of an SDK."""
MIROFLOW = RuntimePolicy("miroflow", start_cpu_s=START_CPU_S, keeps_sessions=False)
"""A new server for each call; calls one after another; keep-5 at each turn."""
DROP_IN = RuntimePolicy("drop-in", start_cpu_s=START_CPU_S, call_s=0.002)
"""The same loop with toolhub's `ToolManager`. call_s: through a hub of its own, measured, rounded up."""
TOOLHUB = RuntimePolicy(
    "toolhub", start_cpu_s=START_CPU_S, servers=1, stride=5, call_s=0.001, is_streamed=True, warms_rewritten=True
)
"""A task starts what keeps its state; the other servers are there for all tasks. call_s: measured, rounded up."""


@dataclass(frozen=True)
class Site:
    """Engines with `blocks` each, and `cores` of the machine that starts the tool servers of all tasks."""

    engines: int = 8
    blocks: int = 16_000
    max_sequences: int = 64
    budget: int = 8192
    cores: int = 8
    costs: EngineCosts = field(default_factory=EngineCosts)


@dataclass(frozen=True)
class TaskReport:
    """Where a task's time goes, in seconds. wall_s is the sum; llm_s is queue_s, prefill_s and decode_s.

    tools_s and start_s: waited for after the last token, on the way of the call that ends last. ttft_s: of each turn
    after a wait for tools. cached: of the prompt tokens.
    """

    wall_s: float
    queue_s: float
    prefill_s: float
    decode_s: float
    tools_s: float
    start_s: float
    prompt: int
    cached: int
    ttft_s: tuple[float, ...]

    @property
    def llm_s(self) -> float:
        return self.queue_s + self.prefill_s + self.decode_s


@dataclass(frozen=True)
class Played:
    """engines: what all of them did. evicted: blocks. pauses: how often a task lost its place."""

    policy: RuntimePolicy
    tasks: list[TaskReport]
    engines: Statistics
    evicted: int
    wall_s: float
    pauses: int = 0

    def summary(self) -> Json:
        """Means over tasks of their seconds; TTFT after tool waits over all turns; tokens of all tasks."""
        count = len(self.tasks)
        ttft = sorted(each for task in self.tasks for each in task.ttft_s)
        names = ("queue_s", "prefill_s", "decode_s", "llm_s", "tools_s", "start_s")
        return {
            "policy": self.policy.name,
            "wall_s": self.wall_s,
            "task_s": sum(task.wall_s for task in self.tasks) / count,
            **{name: sum(getattr(task, name) for task in self.tasks) / count for name in names},
            "ttft_p50_s": median(ttft),
            "ttft_p95_s": ttft[int(0.95 * (len(ttft) - 1))] if ttft else None,
            "prompt": sum(task.prompt for task in self.tasks),
            "cached_share": sum(task.cached for task in self.tasks) / sum(task.prompt for task in self.tasks),
            "prefilled": self.engines.prefilled,
            "warmed": self.engines.warmed,
            "preempted": self.engines.preempted,
            "evicted_blocks": self.evicted,
            "busy_s": self.engines.busy_s,
            "pauses": self.pauses,
        }


def play(traces: Sequence[TaskTrace], policy: RuntimePolicy, site: Site | None = None) -> Played:
    """Task n always asks engine n modulo their number; all begin at once unless the policy has a limit."""
    site = site or Site()
    clock, cores = Clock(), Cores(site.cores)
    engines = [
        Engine(clock, site.costs, blocks=site.blocks, max_sequences=site.max_sequences, budget=site.budget)
        for _ in range(site.engines)
    ]
    gates = [SimulatedGate(clock, _admission(policy, site, clock)) for _ in engines]
    players = [
        Player(trace, policy, engines[number % site.engines], gates[number % site.engines], cores, site.budget)
        for number, trace in enumerate(traces)
    ]
    for number in range(site.engines):
        line = deque(players[number :: site.engines])
        for _ in range(policy.at_once or len(line)):
            _begin_next(line)
    clock.run()
    did = sum((engine.statistics for engine in engines), Statistics())
    evicted = sum(engine.cache.evicted for engine in engines)
    pauses = sum(gate.pauses() for gate in gates)
    return Played(policy, [player.report() for player in players], did, evicted, clock.now, pauses)


def _admission(policy: RuntimePolicy, site: Site, clock: Clock) -> Policy:
    return TokenLedger(capacity=site.blocks * BLOCK, now=lambda: clock.now) if policy.has_admission else AllAtOnce()


def _begin_next(line: deque[Player]) -> None:
    """Begin the first task of an engine's queue. Its end begins the next one."""
    if line:
        line.popleft().begin(lambda: _begin_next(line))


class Cores:
    """Cores that start processes, first come, first served. A starting process has a core to itself."""

    def __init__(self, count: int) -> None:
        self._free_at = [0.0] * count

    def take(self, now: float, cpu_s: float) -> float:
        """Return when the process has started. Call it in the order of time."""
        done = max(heapq.heappop(self._free_at), now) + cpu_s
        heapq.heappush(self._free_at, done)
        return done


class Player:
    """One task: asks its engine, waits for tools, asks again."""

    def __init__(
        self, trace: TaskTrace, policy: RuntimePolicy, engine: Engine, gate: SimulatedGate, cores: Cores, budget: int
    ) -> None:
        self._trace = trace
        self._policy = policy
        self._clock = engine.clock
        self._engine = engine
        self._gate = gate
        self._cores = cores
        self._budget = budget
        self._name = f"task {trace.seed}"
        self._prompts = prompts(trace, policy.keep, policy.stride)
        self._pick = random.Random(f"starts {trace.seed}")
        self._began = 0.0
        self._asked = 0.0
        self._ended: Callable[[], None] = _nothing
        self._turn = 0
        self._is_waiting = False
        self._has_lost = False
        self._ttft: list[float] = []
        self._report = TaskReport(0, 0, 0, 0, 0, 0, 0, 0, ())

    def __repr__(self) -> str:
        return f"<Player {self._name}, turn {self._turn} of {len(self._prompts)}>"

    def report(self) -> TaskReport:
        return replace(self._report, ttft_s=tuple(self._ttft))

    def begin(self, ended: Callable[[], None]) -> None:
        self._began, self._ended = self._clock.now, ended
        if self._policy.start_cpu_s is None:
            self.ask()
        elif self._policy.keeps_sessions:
            now = self._clock.now
            self._opened(max((self._start(now) for _ in range(self._policy.servers)), default=now), self.ask)
        else:
            self._open(self._policy.servers)

    def _open(self, servers: int) -> None:
        """Start servers one after another. Each ends when it has listed its tools."""
        if servers == 0:
            self.ask()
        else:
            self._opened(self._start(self._clock.now), lambda: self._open(servers - 1))

    def _opened(self, ready: float, then: Callable[[], None]) -> None:
        self._add(start_s=ready - self._clock.now)
        self._clock.at(ready, then)

    def ask(self) -> None:
        prompt = self._prompts[self._turn]
        before = self._prompts[self._turn - 1].tokens if self._turn else 0
        self._is_waiting = False
        self._asked = self._clock.now
        self._gate.begin(self._name, self._admitted, prompt=prompt.tokens, is_rewritten=prompt.reusable < before)

    def _admitted(self) -> None:
        prompt, turn = self._prompts[self._turn], self._trace.turns[self._turn]
        self._engine.request(
            self._name,
            prompt.tokens,
            reusable=prompt.reusable,
            decode=turn.decode,
            done=self._answered,
            pin_s=self._policy.pin_s,
        )

    def _answered(self, request: EngineRequest) -> None:
        self._add(
            queue_s=request.admitted - self._asked,
            prefill_s=request.first - request.admitted,
            decode_s=request.finished - request.first,
            prompt=request.prompt,
            cached=request.cached,
        )
        if self._turn:
            self._ttft.append(request.first - self._asked)
        self._gate.end(self._name, Usage(request.prompt, request.decode, request.cached))
        could = self._prompts[self._turn].reusable
        self._has_lost = request.cached < _KNOWN * could - BLOCK
        calls = self._trace.turns[self._turn].calls
        self._turn += 1
        if not calls:
            self._engine.release(self._name)
            self._gate.remove(self._name)
            self._add(wall_s=self._clock.now - self._began)
            self._ended()
            return
        self._is_waiting = True
        if self._policy.is_streamed:
            self._call_at_once(calls, request)
        else:
            self._call_next(calls)
        if self._is_waiting:
            self._plan_ahead(calls)

    # --- tools --------------------------------------------------------------------------------------------------------

    def _call_next(self, calls: tuple[TraceCall, ...]) -> None:
        """Make one call after another. Each call starts the server that it needs."""
        if not calls:
            self.ask()
            return
        now, call = self._clock.now, calls[0]
        ready = self._started(now) + self._policy.call_s
        self._add(start_s=ready - now, tools_s=call.seconds)
        self._clock.at(ready + call.seconds, lambda: self._call_next(calls[1:]))

    def _call_at_once(self, calls: tuple[TraceCall, ...], request: EngineRequest) -> None:
        """Start each call when the model has written it, beside the model and other calls."""
        now, wrote = self._clock.now, request.finished - request.first
        ends = []
        for number, call in enumerate(calls, start=1):
            written = request.first + wrote * (_THINKING + (1 - _THINKING) * number / len(calls))
            ends.append(max(self._started(written), written) + self._policy.call_s + call.seconds)
        resumed = max(now, *ends)
        last = calls[ends.index(max(ends))]
        start = max(min(resumed - now - last.seconds, resumed - now), 0.0)
        self._add(start_s=start, tools_s=resumed - now - start)
        self._clock.at(resumed, self.ask)

    def _started(self, now: float) -> float:
        """Return when a server is ready for a call."""
        return now if self._policy.keeps_sessions else self._start(now)

    def _start(self, now: float) -> float:
        """Return when a server that is started now is ready."""
        assert self._policy.start_cpu_s is not None
        return self._cores.take(now, self._pick.uniform(*self._policy.start_cpu_s))

    # --- prefill-ahead ------------------------------------------------------------------------------------------------

    def _plan_ahead(self, calls: tuple[TraceCall, ...]) -> None:
        """Prefill the known part of the next prompt. A tool is expected to take what its kind usually takes."""
        following, turn = self._prompts[self._turn], self._turn
        known = following.tokens - self._trace.turns[turn].new_tokens
        reusable = min(following.reusable, known)
        expected = max(TOOLS[call.kind].seconds.median for call in calls)
        if self._has_lost:
            late = expected - self._engine.costs.request_s(0, known, self._budget) - _MARGIN_S
            if self._policy.warms_evicted and late > 0:
                self._clock.at(self._clock.now + late, lambda: self._warm(turn, known, reusable))
        elif self._policy.warms_rewritten and known - reusable >= _WORTH_TOKENS:
            if self._engine.costs.request_s(reusable, known - reusable, self._budget) < expected:
                self._warm(turn, known, reusable)

    def _warm(self, turn: int, known: int, reusable: int) -> None:
        if self._is_waiting and self._turn == turn and self._gate.may_warm(self._name):
            self._engine.warm(self._name, known, reusable=reusable, pin_s=self._policy.pin_s)

    def _add(self, **more: float) -> None:
        """Add to the report's numbers."""
        self._report = replace(
            self._report, **{name: getattr(self._report, name) + each for name, each in more.items()}
        )


def _nothing() -> None:
    """A task without a listener."""
