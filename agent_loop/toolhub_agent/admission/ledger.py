"""Which agents may use one model server now: the rules of program-level admission. No I/O, no event loop.

A program is a conversation with its tools. After each turn its tokens stay in the engine's KV cache. The next turn
reuses them. If the programs together need more than the cache holds, each turn evicts another program's tokens, and
every prompt is computed again. `TokenLedger` keeps an account of these tokens. It admits as many programs as fit. The
others wait before their next turn, outside the engine.

The oldest programs come first. A program that was admitted goes on, before those that wait. When the programs outgrow
the cache, the youngest one whose tools run is paused. One that waited is admitted when all that are admitted have room
for two more turns: otherwise one would soon be paused again. While all programs fit, nothing ever waits.

A place is kept while tools run, but not for any price. If the engine has nothing to do and a turn waits, programs yield
whose tools have run for longer than the engine needs to fill its cache. Computing their tokens again costs less then.

Others do this too, by other rules: ThunderAgent (arXiv 2602.13692), CONCUR (2601.22705), Continuum (2511.02230).
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from statistics import fmean, median_low

from toolhub_agent.types import Usage

# The share of the capacity that programs may fill. Blocks are allocated whole, and predictions err.
TARGET = 0.95
# A turn that waited this long goes before all others. OpenAI's client gives up after 600 s.
MAX_PAUSE_S = 300.0
# When a program that waited is admitted, all that are admitted have room for this many further turns. Fewer cost more
# pauses, and more leave the cache empty.
RESERVED_TURNS = 2
# The rate at which the engine computes prompts is measured while it also writes answers. Alone it takes half the time.
HELD_SHARE = 0.5
# A program whose tools run for this long loses its place. On a busy engine its tokens are evicted by then.
IDLE_S = 600.0
# Averages are taken over this many turns.
REMEMBERED_TURNS = 256
# A program without a turn for this long is forgotten: its client is silent.
FORGET_S = 3600.0
# No engine serves this many conversations. The program that was silent for longest is forgotten.
MAX_PROGRAMS = 10_000
# Clients may begin with any prompt. The least recently used prefix is forgotten, and then counted per program.
MAX_PREFIXES = 1000

# --- What is known about a program ------------------------------------------------------------------------------------


class State(Enum):
    """A program has a place while it is RUNNING or ACTING.

    PAUSED: its tools run, or it has not begun. WAITING: its next turn waits for a place. RUNNING: the engine works on
    its turn. ACTING: its tools run, and its tokens stay in the cache.
    """

    PAUSED = "paused"
    WAITING = "waiting"
    RUNNING = "running"
    ACTING = "acting"


_NEXT: dict[State, frozenset[State]] = {
    State.PAUSED: frozenset({State.WAITING, State.ACTING}),  # ACTING: it gets back the place that it lent
    State.WAITING: frozenset({State.RUNNING, State.PAUSED, State.ACTING}),  # ACTING: it wants no turn any more
    State.RUNNING: frozenset({State.ACTING, State.PAUSED}),
    State.ACTING: frozenset({State.WAITING, State.PAUSED}),
}
_RESIDENT = frozenset({State.RUNNING, State.ACTING})


@dataclass(eq=False)
class _Program:
    """age: smaller is older; a child's age begins with its parent's. tokens: in the cache after its last turn.

    answered: when that turn ended. needs: tokens in the cache at the end of the turn that waits or runs. reusable:
    tokens that this turn should find.
    """

    name: str
    age: tuple[int, ...]
    since: float
    run: str = ""
    weight: float = 1.0
    prefix: str = ""
    parent: _Program | None = None
    children: int = 0
    state: State = State.PAUSED
    why: str = ""
    tokens: int = 0
    needs: int = 0
    reusable: int = 0
    answered: float = math.inf

    @property
    def size(self) -> int:
        return self.needs if self.state is State.RUNNING else self.tokens

    def is_ancestor_of(self, other: _Program) -> bool:
        return self.age == other.age[: len(self.age)] and self is not other


@dataclass(eq=False)
class _SharedPrefix:
    """The length of a prompt that many programs begin with. Its tokens are in the cache once.

    tokens: the median of what the engine counted, else the estimate. So one prefix that was partly evicted, or one that
    is longer because it continues a conversation, changes little.
    """

    estimate: int = 0
    tokens: int = 0
    counted: deque[int] = field(default_factory=lambda: deque(maxlen=9))

    def note_estimate(self, tokens: int) -> None:
        if not self.estimate:
            self.estimate = tokens
            self.tokens = self.tokens or tokens

    def note_count(self, cached: int) -> None:
        """cached: what a program's first turn found in the cache, which is what it shares with others."""
        if cached:
            self.counted.append(min(cached, 2 * self.estimate) if self.estimate else cached)
            self.tokens = median_low(self.counted)


# The words of metrics and messages.
_FULL = "the cache is full"
_YIELDED = "older programs fill the cache"
_LENT = "its sub-agent has its place"
_SILENT = "its tools run for very long"


@dataclass(frozen=True, slots=True)
class PausedProgram:
    """A program without a place. since: on the ledger's clock. is_waiting: its next turn waits; else its tools run."""

    name: str
    run: str
    tokens: int
    since: float
    is_waiting: bool
    why: str


@dataclass(frozen=True, slots=True)
class LedgerStatistics:
    """Sizes are tokens. limit: None while nothing limits admission. paused: oldest first. pauses: how many so far."""

    capacity: int | None
    limit: int | None
    used: int
    running: int
    acting: int
    paused: tuple[PausedProgram, ...]
    pauses: dict[str, int]
    decreases: int

    @property
    def waiting(self) -> int:
        return sum(each.is_waiting for each in self.paused)


# --- The limit --------------------------------------------------------------------------------------------------------

# Turns of one judgement, and how many of them must have lost their tokens.
_JUDGED_TURNS, _EVICTED_TURNS = 16, 4
# A turn that finds less than this share of its own tokens lost them. Templates drop some text, so not all are found.
_FOUND_SHARE = 0.5
# AIMD: the factor of a decrease, and the share of the limit that each clean judgement adds.
_DECREASE, _INCREASE = 0.9, 0.02
# Other users of the engine may take some of the cache. If they take more than this, admission cannot help.
_LOWEST_SHARE = 0.25


class TokenLimit:
    """How many tokens programs may keep: a share of the capacity, and less while tokens are evicted anyway (AIMD).

    If the capacity is unknown there is no limit until tokens are evicted that were found before. An engine that never
    reuses tokens proves nothing.
    """

    def __init__(self, target: float) -> None:
        self.capacity: int | None = None
        self.decreases = 0
        self._target = target
        self._found: float | None = None
        self._turns: list[bool] = []
        self._was_good = False

    @property
    def tokens(self) -> int | None:
        ceiling = math.inf if self.capacity is None else self.capacity * self._target
        limit = min(ceiling, math.inf if self._found is None else self._found)
        return None if math.isinf(limit) else int(limit)

    def set_capacity(self, capacity: int | None) -> None:
        if capacity != self.capacity:  # another engine, so nothing that was measured before counts
            self.capacity = capacity
            self._found = None
            self._turns.clear()
            self._was_good = False

    def note_reuse(self, *, expected: int, found: int, used: int) -> None:
        """A program with a place ended a turn. found: of its `expected` tokens, those that were in the cache."""
        self._turns.append(found < expected * _FOUND_SHARE)
        if len(self._turns) < _JUDGED_TURNS:
            return
        evicted = sum(self._turns)
        self._turns.clear()
        if evicted < _EVICTED_TURNS:
            self._was_good = True
            if self._found is not None and not evicted:
                self._found *= 1 + _INCREASE
        elif self._was_good:
            self.decrease(used)

    def decrease(self, used: int) -> None:
        """The engine has no room for what is used now."""
        self._turns.clear()
        self.decreases += 1
        limit = self.tokens
        base = used if limit is None else min(limit, max(used, limit // 2))
        lowest = 1.0 if self.capacity is None else self.capacity * _LOWEST_SHARE
        self._found = max(lowest, base * _DECREASE)


# --- The ledger -------------------------------------------------------------------------------------------------------


def _mean(values: Collection[float]) -> float:
    """0 without values."""
    return fmean(values) if values else 0.0


class TokenLedger:
    """The programs of one engine. A method that may let turns begin returns the names of their programs.

    ledger = TokenLedger(capacity=500_000)
    if "task-1" in ledger.begin_turn("task-1", prompt_tokens=6000): ...   # else it waits; a later event admits it
    ledger.end_turn("task-1", usage)                                       # its tools run now
    ledger.remove("task-1")
    """

    def __init__(
        self,
        *,
        capacity: int | None = None,
        target: float = TARGET,
        max_pause: float = MAX_PAUSE_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """capacity: tokens that the engine's cache holds; None: unknown, so everything is admitted."""
        self._limit = TokenLimit(target)
        self._limit.set_capacity(capacity)
        self._max_pause = max_pause
        self._now = now
        self._programs: dict[str, _Program] = {}
        self._number = 0
        self._growth: deque[int] = deque(maxlen=REMEMBERED_TURNS)
        self._answers: deque[int] = deque(maxlen=REMEMBERED_TURNS)
        self._tools_s: deque[float] = deque(maxlen=REMEMBERED_TURNS)
        self._computed = 0
        self._busy_s = 0.0
        self._noted = now()
        self._shared: OrderedDict[str, _SharedPrefix] = OrderedDict()
        self._pauses: Counter[str] = Counter()

    def __repr__(self) -> str:
        states = Counter(program.state.value for program in self._programs.values())
        counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        return f"<TokenLedger {self.used} of {self.limit} tokens, {counts or 'no programs'}>"

    def __contains__(self, name: object) -> bool:
        return name in self._programs

    @property
    def limit(self) -> int | None:
        """Tokens that programs may keep; None: any number."""
        return self._limit.tokens

    @property
    def used(self) -> int:
        """Tokens of all programs with a place: the tokens that they keep, and those that running turns will add."""
        residents = [program for program in self._programs.values() if program.state in _RESIDENT]
        prefixes = {program.prefix for program in residents}
        return sum(map(self._own, residents)) + sum(map(self._shared_tokens, prefixes))

    def has_room(self, tokens: int) -> bool:
        """Whether a program of this size would be admitted at once, without a pause of another one."""
        limit = self.limit
        return limit is None or (self._head() is None and self.used + tokens <= limit)

    def state(self, name: str) -> State | None:
        """None: unknown, or forgotten."""
        program = self._programs.get(name)
        return program.state if program is not None else None

    def statistics(self) -> LedgerStatistics:
        states = Counter(program.state for program in self._programs.values())
        return LedgerStatistics(
            capacity=self._limit.capacity,
            limit=self.limit,
            used=self.used,
            running=states[State.RUNNING],
            acting=states[State.ACTING],
            paused=tuple(
                PausedProgram(each.name, each.run, each.tokens, each.since, each.state is State.WAITING, each.why)
                for each in sorted(self._programs.values(), key=lambda program: program.age)
                if each.state is State.WAITING or (each.state is State.PAUSED and each.why)
            ),
            pauses=dict(self._pauses),
            decreases=self._limit.decreases,
        )

    # --- turns -------------------------------------------------------------------------------------------------------

    def begin_turn(
        self,
        name: str,
        *,
        prompt_tokens: int | None = None,
        run: str = "",
        weight: float = 1.0,
        prefix: str = "",
        prefix_tokens: int = 0,
        parent: str | None = None,
        is_rewritten: bool = False,
    ) -> tuple[str, ...]:
        """A turn wants to begin. It may, if the program is among those returned; otherwise it waits.

        prompt_tokens: an estimate; None: as the program grew so far. run, weight: runs share the cache by their
        weights. prefix: equal for programs that begin with the same prompt; prefix_tokens: its estimated length, used
        until an engine's count is known. parent: the program that waits for this one meanwhile. is_rewritten: the
        prompt was cut, so that less of it is reused. Raises ValueError if the program has a turn already.
        """
        program = self._programs.get(name) or self._add(name, parent)
        if program.state in (State.WAITING, State.RUNNING):
            raise ValueError(f"program {name!r} has a turn already")
        program.run, program.weight, program.prefix = run, weight, prefix
        self._note_prefix(prefix, prefix_tokens)
        was_resident = program.state is State.ACTING
        if program.tokens:
            self._tools_s.append(self._now() - program.answered)
        # A program that was not paused goes on, unless another one waited too long.
        goes_on = was_resident or (bool(program.tokens) and not program.why)
        head = self._head()
        program.needs = self._predicted(program, prompt_tokens)
        program.reusable = program.tokens if was_resident and not is_rewritten else 0
        self._move(program, State.WAITING, program.why or _FULL)
        if head is None or (goes_on and not self._is_overdue(head)):
            if self._make_room(program, acting_s=0.0 if goes_on else None):
                self._move(program, State.RUNNING)
                return (name, *self.schedule())
        return self.schedule()

    def end_turn(self, name: str, usage: Usage, *, keeps_place: bool = True) -> tuple[str, ...]:
        """The turn was answered. The program's tools may run now, and its tokens stay in the cache.

        keeps_place: false if no turn is expected to follow. If one does, it waits like a new one, but keeps its age.
        """
        program = self._programs.get(name)
        if program is None or program.state is not State.RUNNING:
            return ()
        used, before = self.used, program.tokens
        tokens = usage.prompt_tokens + usage.completion_tokens or program.needs
        self._learn(program, usage, tokens, used)
        program.tokens, program.answered = tokens, self._now()
        self._move(program, State.ACTING if keeps_place else State.PAUSED)
        if before and tokens > before:
            self._growth.append(tokens - before)
        self._pause_overflow()
        return self.schedule()

    def cancel_turn(self, name: str) -> tuple[str, ...]:
        """The turn ended without an answer, or no longer waits. The program stays as it was before."""
        program = self._programs.get(name)
        if program is None or program.state not in (State.WAITING, State.RUNNING):
            return ()
        had_place = program.state is State.RUNNING or (program.why == _FULL and self._missing(program) <= 0)
        if had_place and program.tokens:
            self._move(program, State.ACTING)
        else:
            self._move(program, State.PAUSED, program.why if program.tokens else "")
        self._pause_overflow()  # its prompt may have been shorter than what it keeps now
        return self.schedule()

    def remove(self, name: str) -> tuple[str, ...]:
        """The program is done, or goes to another engine."""
        self._count_busy()
        program = self._programs.pop(name, None)
        if program is None:
            return ()
        parent = program.parent
        if parent is not None:
            parent.children -= 1
            is_lent = parent.state is State.PAUSED and parent.why == _LENT
            if is_lent and not parent.children and self._missing(parent) <= 0:
                self._move(parent, State.ACTING)
        return self.schedule()

    # --- the engine --------------------------------------------------------------------------------------------------

    def set_capacity(self, capacity: int | None) -> tuple[str, ...]:
        """What the engine's cache holds. None: unknown (no metrics, or it died), so everything is admitted."""
        self._limit.set_capacity(capacity)
        self._pause_overflow()
        return self.schedule()

    def note_preemptions(self) -> None:
        """The engine interrupted running requests, because its cache was full."""
        self._limit.decrease(self.used)
        self._pause_overflow()

    # --- admission ---------------------------------------------------------------------------------------------------

    def schedule(self) -> tuple[str, ...]:
        """Admit all turns that may begin now. Call this once a second while turns wait: they get older."""
        self._expire()
        admitted = []
        while (head := self._head()) is not None:
            if not self._make_room(head, reserved_turns=RESERVED_TURNS):
                if self._is_busy or not self._make_room(head, acting_s=self._held_s()):
                    break
            self._move(head, State.RUNNING)
            admitted.append(head.name)
        return tuple(admitted)

    def _head(self) -> _Program | None:
        """The next to be admitted: the program that waited too long, else the oldest of the run that has least."""
        waiting = [program for program in self._programs.values() if program.state is State.WAITING]
        if not waiting:
            return None
        first = min(waiting, key=lambda program: (program.since, program.age))
        if self._is_overdue(first):
            return first
        shares = self._shares() if len(waiting) > 1 else {first.run: 0.0}
        return min(waiting, key=lambda program: (shares[program.run], program.age))

    def _is_overdue(self, program: _Program) -> bool:
        return program.state is State.WAITING and self._now() - program.since >= self._max_pause

    def _make_room(self, program: _Program, *, acting_s: float | None = None, reserved_turns: int = 0) -> bool:
        """Pause programs whose tools run, if that makes room. Return whether the program may be admitted.

        acting_s: programs whose tools have run for so long yield, the youngest first. None: only those that `_victims`
        names. reserved_turns: of it and of all with a place, for which there must be room too.
        """
        if self.limit is None:
            return True
        is_overdue = self._is_overdue(program)
        residents = sum(each.state in _RESIDENT for each in self._programs.values())
        missing = self._missing(program)
        if not is_overdue:
            missing += reserved_turns * (residents + 1) * round(_mean(self._growth))
        victims: list[_Program] = []
        for victim in self._victims(program, acting_s=0.0 if is_overdue else acting_s) if missing > 0 else ():
            victims.append(victim)
            missing -= self._own(victim)
            if missing <= 0:
                break
        fits = missing <= 0 or len(victims) == residents
        if fits or is_overdue:
            for victim in victims:
                self._pause(victim, _LENT if victim.is_ancestor_of(program) else _YIELDED)
        return fits

    def _victims(self, program: _Program, *, acting_s: float | None) -> Iterator[_Program]:
        """Programs whose tools run, in the order in which they are paused for this one: ancestors, then the youngest.

        Those are its ancestors, programs of a run that has more for its weight than its own, as long as it keeps as
        much, and all whose tools have run for acting_s.
        """
        now = self._now()
        shares = self._shares()
        wanted = shares[program.run] + self._needed(program) / program.weight
        acting = [each for each in self._programs.values() if each.state is State.ACTING]
        while acting:
            victim = max(acting, key=lambda each: (each.is_ancestor_of(program), shares[each.run], each.age))
            acting.remove(victim)
            rest = shares[victim.run] - self._own(victim) / victim.weight
            has_more = victim.run != program.run and rest >= wanted
            is_late = acting_s is not None and now - victim.answered >= acting_s
            if is_late or has_more or victim.is_ancestor_of(program):
                shares[victim.run] = rest
                yield victim

    def _pause_overflow(self) -> None:
        """Pause the youngest programs whose tools run until the others fit. The last program keeps its place."""
        limit = self.limit
        if limit is None:
            return
        residents = [program for program in self._programs.values() if program.state in _RESIDENT]
        over = self.used - limit
        while over > 0 and len(residents) > 1:
            shares = self._shares()
            acting = [program for program in residents if program.state is State.ACTING]
            if not acting:
                return
            victim = max(acting, key=lambda each: (shares[each.run], each.age))
            residents.remove(victim)
            over -= self._own(victim)
            self._pause(victim, _YIELDED)

    def _pause(self, program: _Program, why: str) -> None:
        self._pauses[why] += 1
        self._move(program, State.PAUSED, why)

    def _move(self, program: _Program, state: State, why: str = "") -> None:
        if state not in _NEXT[program.state]:
            raise RuntimeError(f"program {program.name!r} cannot go from {program.state.value} to {state.value}")
        self._count_busy()
        program.state, program.why, program.since = state, why, self._now()

    # --- time --------------------------------------------------------------------------------------------------------

    @property
    def _is_busy(self) -> bool:
        return any(program.state is State.RUNNING for program in self._programs.values())

    def _count_busy(self) -> None:
        """Call this before each change of a state."""
        now = self._now()
        if self._is_busy:
            self._busy_s += now - self._noted
        self._noted = now

    def _held_s(self) -> float:
        """For how long a place is kept while its program's tools run, a turn waits, and the engine is idle.

        In this time the engine computes as many tokens as the cache holds: to keep a share of the cache costs as much
        as to compute that share again. 0 if tools usually take longer.
        """
        if self.limit is None or not self._computed:
            return 0.0
        held_s = HELD_SHARE * self.limit * self._busy_s / self._computed
        return held_s if _mean(self._tools_s) <= held_s else 0.0

    # --- sizes -------------------------------------------------------------------------------------------------------

    def _own(self, program: _Program) -> int:
        """Its tokens without the shared prefix."""
        return max(0, program.size - self._shared_tokens(program.prefix))

    def _needed(self, program: _Program) -> int:
        """What its place would take, without the shared prefix."""
        tokens = program.needs if program.state is State.WAITING else program.tokens
        return max(0, tokens - self._shared_tokens(program.prefix))

    def _missing(self, program: _Program) -> int:
        """How many tokens too few are free for this program; <= 0: it fits."""
        limit = self.limit
        if limit is None:
            return 0
        is_first = not any(each.prefix == program.prefix for each in self._programs.values() if each.state in _RESIDENT)
        prefix = self._shared_tokens(program.prefix) if is_first else 0
        return self.used + prefix + self._needed(program) - limit

    def _shared_tokens(self, prefix: str) -> int:
        known = self._shared.get(prefix)
        return known.tokens if known is not None else 0

    def _note_prefix(self, prefix: str, estimate: int) -> None:
        self._shared.setdefault(prefix, _SharedPrefix()).note_estimate(estimate)
        self._shared.move_to_end(prefix)
        if len(self._shared) > MAX_PREFIXES:
            self._shared.popitem(last=False)

    def _shares(self) -> dict[str, float]:
        """The tokens that each run has, divided by its weight."""
        shares: defaultdict[str, float] = defaultdict(float)
        for program in self._programs.values():
            if program.state in _RESIDENT:
                shares[program.run] += self._own(program) / program.weight
        return shares

    def _predicted(self, program: _Program, prompt_tokens: int | None) -> int:
        """Tokens at the end of the next turn."""
        if prompt_tokens is not None:
            return prompt_tokens + round(_mean(self._answers))
        return program.tokens + round(_mean(self._growth))

    def _learn(self, program: _Program, usage: Usage, tokens: int, used: int) -> None:
        """Learn from an answered turn: lengths of answers, of the shared prefix, and whether tokens were evicted."""
        self._answers.append(usage.completion_tokens)
        self._computed += usage.prompt_tokens - min(usage.cached_tokens or 0, usage.prompt_tokens)
        if usage.cached_tokens is None:
            return
        if not program.tokens and program.prefix in self._shared:
            self._shared[program.prefix].note_count(usage.cached_tokens)
        if program.reusable:
            found = min(usage.cached_tokens, usage.prompt_tokens)
            self._limit.note_reuse(expected=min(program.reusable, usage.prompt_tokens), found=found, used=used)

    # --- programs ----------------------------------------------------------------------------------------------------

    def _add(self, name: str, parent_name: str | None) -> _Program:
        self._number += 1
        parent = self._programs.get(parent_name) if parent_name is not None else None
        age = (*(parent.age if parent is not None else ()), self._number)
        if parent is not None:
            parent.children += 1
        if len(self._programs) >= MAX_PROGRAMS:
            self._forget_one()
        program = self._programs[name] = _Program(name, age, self._now(), parent=parent)
        return program

    def _expire(self) -> None:
        """Take the place of programs whose tools run for very long, and forget those without a turn for even longer."""
        now = self._now()
        for program in [each for each in self._programs.values() if now - each.since >= IDLE_S]:
            if program.state is State.ACTING and not program.children:
                self._pause(program, _SILENT)
            elif program.state is State.PAUSED and not program.children and now - program.since >= FORGET_S:
                self._programs.pop(program.name)
                if program.parent is not None:
                    program.parent.children -= 1

    def _forget_one(self) -> None:
        silent = [each for each in self._programs.values() if each.state in (State.PAUSED, State.ACTING)]
        if silent:
            self._programs.pop(min(silent, key=lambda each: each.since).name)
