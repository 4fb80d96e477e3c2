"""Begins work before a call asks for it, and lets the call take it over.

There are two kinds. A *prefetch* is for a tool whose server can begin with a part of the arguments; the server keeps
what comes of it, and the call finds it there. A *guess* is a whole call; its result waits here for an equal call of the
same task. What no call takes over is dropped.

Guesses follow rules: after a result of one tool, a call of another with arguments from that result. Each place of a
rule (the first link, the second link) is counted whether its guesses are made or not. So a place that is seldom right
costs nothing, and comes back when it is right more often.

Speculative work is the lowest class. It is refused where it would have to wait, and it makes way for real calls; see
`toolhub.limits.limiter.PreemptiblePlaces`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import anyio.abc

from toolhub.config.speculation import SpeculationMode, SpeculationRule, SpeculationSettings
from toolhub.errors import Overloaded, ToolhubError
from toolhub.layers import Handler, Layer
from toolhub.layers.cache_key import CacheTarget, key_of
from toolhub.layers.clone import size_of
from toolhub.limits.limiter import ConcurrencyLimiter, PreemptiblePlaces
from toolhub.model import Call, Json, Result, SpeculationStatistics
from toolhub.overload import overload_in

# A place of a rule is judged by its last results, at least and at most so many.
_ENOUGH = 10
_MEMORY = 100
# One of so many results measures a place that is left out.
_PROBE_EVERY = 20
# Unused guesses that are allowed before the first real calls.
_FIRST_FEW = 2
# A task's guesses and expectations beyond this number are dropped, oldest first.
_MOST = 256
# Progress of a guess that its call will get.
_MOST_PROGRESS = 32
# A longer result is not searched for arguments.
_LONGEST_RESULT = 1_000_000
_MODES: Sequence[SpeculationMode] = ("none", "exact", "guess")


# --- rules ------------------------------------------------------------------------------------------------------------


def derived_arguments(rule: SpeculationRule, result: Result) -> Iterator[tuple[int, Json]]:
    """Yield (place, arguments) for the calls that may follow a result. Nothing where it is not JSON or has no such key.

    Only texts are taken: they name things. A number or an object of a result means something else in another tool.
    """
    found = _json_of(result)
    for place in range(rule.first) if found is not None else ():
        arguments = {name: _at(found, path, place) for name, path in rule.then.arguments.items()}
        if all(isinstance(value, str) and value for value in arguments.values()):
            yield place, arguments


def _json_of(result: Result) -> Any:
    if result.structured is not None:
        return result.structured
    text = result.text
    if not text.startswith(("{", "[")) or len(text) > _LONGEST_RESULT:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _at(node: Any, path: str, place: int) -> Any:
    for step in path.split("."):
        if isinstance(node, list):
            number = place if step == "*" else int(step) if step.isdecimal() else len(node)
            node = node[number] if number < len(node) else None
        else:
            node = node.get(step) if isinstance(node, dict) else None
    return node


@dataclass(eq=False, slots=True)
class _Place:
    """How often a place of a rule was right. Old results count less."""

    seen: float = 0.0
    used: float = 0.0
    skipped: int = 0

    def note_seen(self) -> None:
        if self.seen >= _MEMORY:
            self.seen, self.used = self.seen / 2, self.used / 2
        self.seen += 1

    def pays(self, min_hit_rate: float) -> bool:
        """Whether a guess is worth its cost, or is due to measure that again."""
        if self.seen < _ENOUGH or self.used >= min_hit_rate * self.seen:
            return True
        self.skipped += 1
        return self.skipped % _PROBE_EVERY == 0


class Speculation:
    """What the tasks of a hub know together: how often rules are right, and how much was in vain."""

    def __init__(self, settings: SpeculationSettings) -> None:
        self.settings = settings
        self._places: dict[tuple[int, int], _Place] = {}
        self._calls: dict[tuple[str, str], int] = {}
        self._unused: dict[tuple[str, str], int] = {}
        self.prefetches = self.guesses = self.used = self.preempted = self.refused = 0

    def __repr__(self) -> str:
        return f"<Speculation {self.settings.mode} {self.statistics()}>"

    def mode_for(self, asked: SpeculationMode | None) -> SpeculationMode:
        """Return a task's mode: what it asked for, but no more than the hub allows."""
        return min(asked or self.settings.mode, self.settings.mode, key=_MODES.index)

    def place(self, rule: int, place: int) -> _Place:
        return self._places.setdefault((rule, place), _Place())

    def note_call(self, tool: tuple[str, str]) -> None:
        self._calls[tool] = self._calls.get(tool, 0) + 1

    def may_guess(self, tool: tuple[str, str]) -> bool:
        """Whether another guess would keep within the budget if no call used it."""
        return self._unused.get(tool, 0) < _FIRST_FEW + self.settings.max_unused * self._calls.get(tool, 0)

    def note_guess(self, tool: tuple[str, str], change: int) -> None:
        """change: 1 for a guess that begins; -1 for one that a call uses, or that ended before it cost anything."""
        self._unused[tool] = self._unused.get(tool, 0) + change

    def statistics(self) -> SpeculationStatistics:
        return SpeculationStatistics(self.prefetches, self.guesses, self.used, self.preempted, self.refused)


# --- one task ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Early:
    """Work that was begun before its call. result: of a guess that has ended well."""

    call: Call
    key: str
    until: float
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    places: PreemptiblePlaces = field(init=False)
    taker: Call | None = None
    is_budgeted: bool = False
    result: Result | None = None
    size: int = 0
    progress: list[tuple[float, float | None, str | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.places = PreemptiblePlaces(self.scope.cancel)

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self.taker is None:
            self.progress = [*self.progress[-_MOST_PROGRESS + 1 :], (progress, total, message)]
        elif self.taker.on_progress is not None:
            await self.taker.on_progress(progress, total, message)


class TaskSpeculation:
    """The early work of one task. It ends with the task, and only calls of the task use it."""

    def __init__(
        self,
        shared: Speculation,
        mode: SpeculationMode,
        *,
        owners: anyio.abc.TaskGroup,
        target_of: Callable[[Call], CacheTarget],
        limiters_of: Callable[[Call], Sequence[ConcurrencyLimiter]],
        new_call: Callable[[str, str, Json], Call | None],
        required: Callable[[Call], Sequence[str] | None],
    ) -> None:
        """new_call: makes a call; None if the task has no such server. required: arguments that a call must have."""
        self.mode = mode
        self.handle: Handler | None = None
        """The layers that early calls pass; the task sets it. `admitted` is the innermost."""
        self._shared = shared
        self._settings = shared.settings
        self._owners = owners
        self._target_of = target_of
        self._limiters_of = limiters_of
        self._new_call = new_call
        self._required = required
        self._early: OrderedDict[str, _Early] = OrderedDict()
        self._by_call: dict[str, _Early] = {}
        self._expected: OrderedDict[str, tuple[_Place, float]] = OrderedDict()
        rules = shared.settings.rules if mode == "guess" else []
        self._targets = {(rule.then.server, rule.then.tool) for rule in rules}
        self._in_rules = self._targets | {(rule.after.server, rule.after.tool) for rule in rules}
        self._kept_bytes = 0

    def __repr__(self) -> str:
        return f"<TaskSpeculation {self.mode} early={len(self._early)} kept_bytes={self._kept_bytes}>"

    def __len__(self) -> int:
        return len(self._early)

    @property
    def kept_bytes(self) -> int:
        return self._kept_bytes

    # --- beginning ----------------------------------------------------------------------------------------------------

    def prefetch(self, server: str, tool: str, arguments: Json) -> None:
        """Begin what a call with these arguments, and perhaps more, will need. Never waits, never raises."""
        call = self._new_call(server, tool, arguments) if self.mode != "none" else None
        if call is not None:
            self._begin(call, may_guess=self.mode == "guess", is_budgeted=False)

    def follow(self, call: Call, result: Result) -> None:
        """Begin what the rules expect after a result."""
        if self.mode != "guess" or result.is_error:
            return
        for number, rule in enumerate(self._settings.rules):
            if (rule.after.server, rule.after.tool) != (call.server, call.tool):
                continue
            for place, arguments in derived_arguments(rule, result):
                count = self._shared.place(number, place)
                expected = _expectation(rule.then.server, rule.then.tool, arguments)
                if expected in self._expected:
                    continue
                count.note_seen()
                self._expected[expected] = (count, anyio.current_time() + self._settings.keep_s)
                if len(self._expected) > _MOST:
                    self._expected.popitem(last=False)
                guess = self._new_call(rule.then.server, rule.then.tool, arguments)
                if guess is not None and guess.policy.speculative and count.pays(self._settings.min_hit_rate):
                    self._begin(guess, may_guess=True, is_budgeted=True)

    def _begin(self, call: Call, *, may_guess: bool, is_budgeted: bool) -> None:
        """Begin a prefetch or a guess, where that is declared, is not begun yet, and has room."""
        self._drop_old()
        call = self._as_declared(call, may_guess) or call
        key = self._key(call) if call.early else None
        tool = (call.server, call.tool)
        if key is None or key in self._early or self._discloses_secret(call):
            return
        running = sum(not early.ended.is_set() for early in self._early.values())
        if running >= self._settings.in_flight or (is_budgeted and not self._shared.may_guess(tool)):
            self._shared.refused += 1
            return
        early = _Early(call, key, anyio.current_time() + self._settings.keep_s, is_budgeted=is_budgeted)
        early.call = replace(call, on_progress=early.on_progress if call.early == "guess" else None)
        self._early[key] = self._by_call[call.id] = early
        if is_budgeted:
            self._shared.note_guess(tool, 1)
        self._owners.start_soon(self._run, early, self.handle, name=f"speculative {call.server}/{call.tool}")

    def _as_declared(self, call: Call, may_guess: bool) -> Call | None:
        """Return the early call that the declarations allow; None if there is none. The tool must be read-only."""
        target, policy = self._target_of(call), call.policy
        if not policy.read_only or target.spec.share == "call":
            return None
        if policy.prefetch and call.arguments.keys() >= set(policy.prefetch):
            return replace(call, early="prefetch")
        required = self._required(call)
        is_whole = required is not None and call.arguments.keys() >= set(required)
        return replace(call, early="guess") if policy.speculative and may_guess and is_whole else None

    def _discloses_secret(self, call: Call) -> bool:
        secrets = self._target_of(call).spec.secrets
        return any(secret in str(value) for value in call.arguments.values() for secret in secrets)

    def _key(self, call: Call) -> str | None:
        """Return the key of early work. A prefetch has only the arguments that it needs, so that its call finds it."""
        if call.early == "prefetch":
            needed = {name: call.arguments[name] for name in call.policy.prefetch if name in call.arguments}
            call = replace(call, arguments=needed)
        return key_of(call, self._target_of(call), "task", call.early)

    async def _run(self, early: _Early, handle: Handler | None) -> None:
        assert handle is not None
        try:
            with early.scope:
                early.result = await handle(early.call)
        except ToolhubError:
            pass  # an equal call gets the error itself
        finally:
            del self._by_call[early.call.id]
            self._settle(early)
            early.ended.set()

    def _settle(self, early: _Early) -> None:
        """Keep what may be taken over. Forget what failed or made way."""
        result = early.result
        if early.taker is not None:
            return
        if result is None:
            self._shared.preempted += early.scope.cancel_called
            self._forget(early)
        elif result.is_error or overload_in(result.raw) is not None:
            self._forget(early)
        elif early.call.early == "guess":
            early.size = size_of(result.raw)
            self._kept_bytes += early.size
            while self._kept_bytes > self._settings.keep_bytes:
                self._forget(next(kept for kept in self._early.values() if kept.size))

    @asynccontextmanager
    async def _spare_places(self, call: Call) -> AsyncIterator[None]:
        places = self._by_call[call.id].places
        limiters = self._limiters_of(call)
        try:
            for limiter in limiters:
                if not limiter.try_enter_preemptible(places):
                    if self._by_call[call.id].is_budgeted:  # it has cost nothing
                        self._shared.note_guess((call.server, call.tool), -1)
                        self._by_call[call.id].is_budgeted = False
                    self._shared.refused += 1
                    raise Overloaded(f"{limiter.name} has no place to spare for speculative work")
            self._shared.prefetches += call.early == "prefetch"
            self._shared.guesses += call.early == "guess"
            yield
        finally:
            places.leave()

    def admitted(self, inner: Handler) -> Handler:
        """The layer that admits early calls, in place of `admission`."""

        async def handle(call: Call) -> Result:
            async with self._spare_places(call):
                result = await inner(call)
            overload = overload_in(result.raw)
            if overload is not None:
                for limiter in self._limiters_of(call):
                    limiter.slow_down(overload.retry_after)
            return result

        return handle

    def concerns(self, call: Call) -> bool:
        """Whether early work may answer this call, or a rule is about it."""
        if (call.server, call.tool) in self._in_rules:
            return True
        return bool(self._early) and (call.policy.speculative or bool(call.policy.prefetch))

    # --- taking over --------------------------------------------------------------------------------------------------

    def take(self, call: Call) -> _Early | None:
        """Return the guess that answers this call; None if the call must be made. Counts what was right."""
        policy = call.policy
        tool = (call.server, call.tool)
        if tool in self._targets:
            self._note_expected(call)
            self._shared.note_call(tool)
        if not self._early or not (policy.prefetch or policy.speculative):
            return None
        self._drop_old()
        prefetched = self._early.get(self._key(replace(call, early="prefetch")) or "") if policy.prefetch else None
        if prefetched is not None:
            self._mark_used(prefetched, call)
            self._forget(prefetched, is_used=True)
        early = self._early.get(self._key(replace(call, early="guess")) or "") if policy.speculative else None
        if early is None or early.taker is not None or _wants_progress(call):
            return None
        self._mark_used(early, call)
        return early

    async def taken_over(self, early: _Early, call: Call) -> Result | None:
        """Wait for a guess and return its result; None if it failed, so that the call must be made."""
        try:
            for step in early.progress:
                await early.on_progress(*step)
            await early.ended.wait()
        except BaseException:
            early.scope.cancel()  # the call was cancelled, and with it the work
            raise
        finally:
            self._forget(early, is_used=True)
            call.delivery.absorb(early.call.delivery)
        return early.result

    def _mark_used(self, early: _Early, call: Call) -> None:
        early.taker = call
        early.places.keep()
        call.delivery.speculated = True
        self._shared.used += 1
        if early.is_budgeted:
            self._shared.note_guess((call.server, call.tool), -1)

    def _note_expected(self, call: Call) -> None:
        now = anyio.current_time()
        for rule in self._settings.rules:
            if (rule.then.server, rule.then.tool) != (call.server, call.tool):
                continue
            arguments = {name: call.arguments.get(name) for name in rule.then.arguments}
            place, until = self._expected.pop(_expectation(call.server, call.tool, arguments), (None, 0.0))
            if place is not None and now <= until:
                place.used += 1

    def _drop_old(self) -> None:
        now = anyio.current_time()
        for early in [early for early in self._early.values() if early.until <= now or len(self._early) > _MOST]:
            if early.ended.is_set():
                self._forget(early)

    def _forget(self, early: _Early, *, is_used: bool = False) -> None:
        if self._early.get(early.key) is early:
            del self._early[early.key]
        self._kept_bytes -= early.size
        early.size = 0
        if not is_used:
            early.result = None

    def close(self) -> None:
        """Cancel and drop everything. Nothing begins any more."""
        self.mode, self.handle = "none", None  # without the cycle the task's memory is free at once
        for early in list(self._early.values()):
            early.scope.cancel()
            self._forget(early)
        self._expected.clear()


def _expectation(server: str, tool: str, arguments: Mapping[str, Any]) -> str:
    return json.dumps([server, tool, arguments], sort_keys=True, default=str)


def _wants_progress(call: Call) -> bool:
    """Whether an MCP client waits for progress under a token that an early call did not have."""
    params = (call.relayed.params or {}) if call.relayed is not None else {}
    return "progressToken" in (params.get("_meta") or {})


def speculate(speculation: TaskSpeculation) -> Layer:
    """Answer a call with an equal guess of its task, and begin what its result makes likely."""

    def layer(inner: Handler) -> Handler:
        def handle(call: Call) -> Coroutine[Any, Any, Result]:
            return followed(call) if speculation.concerns(call) else inner(call)

        async def followed(call: Call) -> Result:
            early = speculation.take(call)
            result = await speculation.taken_over(early, call) if early is not None else None
            if result is None:
                result = await inner(call)
            speculation.follow(call, result)
            return result

        return handle

    return layer
