"""Program-level admission for the event loop: turns wait here until the ledger of their engine admits them.

One ledger per endpoint. Callers choose an endpoint, `begin` a turn there, and end it with `finish` or `release`. What
engines report about their cache comes from the scrapers of `EndpointPool`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel

from toolhub.config.llm import AdmissionSettings
from toolhub_agent.admission.ledger import MAX_PROGRAMS, LedgerStatistics, State, TokenLedger
from toolhub_agent.llm.concurrency import SCRAPE_TIMEOUT_S, EngineLoad
from toolhub_agent.types import Usage

# The first turn waits this long for the engine's first report. Without it a burst of agents would be admitted at once.
FIRST_REPORT_S = SCRAPE_TIMEOUT_S + 0.5
# How often waiting turns are looked at, because they get older.
TICK_S = 1.0
# A wait is logged once when it takes this long.
LOGGED_WAIT_S = 30.0
# Requests that were preempted together are reported over several seconds. They count once.
PREEMPTION_PAUSE_S = 30.0
# Before an engine counted anything. English has about four bytes per token, program text about three.
FIRST_BYTES_PER_TOKEN = 3.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A turn that wants to begin. program: the conversation; "": a request of its own, which is done when it ends.

    prefix: equal for programs that begin with the same prompt, whose size is prefix_bytes. The rest is as for
    `TokenLedger.begin_turn`.
    """

    program: str
    prompt_bytes: int
    prefix: str = ""
    prefix_bytes: int = 0
    run: str = ""
    weight: float = 1.0
    parent: str | None = None
    is_rewritten: bool = False


@dataclass(frozen=True, slots=True)
class AdmissionStatistics:
    """waited_s: of all turns together, those that wait now included."""

    ledger: LedgerStatistics
    waits: int
    waited_s: float


@dataclass(eq=False)
class _Wait:
    began: float
    over: anyio.Event = field(default_factory=anyio.Event)
    is_moved: bool = False
    """The endpoint failed or the program is gone: the caller chooses again."""
    is_logged: bool = False


class _Engine:
    """One endpoint's ledger, and the turns that wait for it."""

    def __init__(self, url: str, settings: AdmissionSettings) -> None:
        self.url = url
        self.waiting: dict[str, _Wait] = {}
        self.reported = anyio.Event()
        self.waits = 0
        self.waited_s = 0.0
        self.ledger = TokenLedger(
            capacity=settings.capacity_tokens,
            target=settings.target,
            max_pause=settings.max_pause_s,
            now=anyio.current_time,
        )
        self._configured = settings.capacity_tokens
        self._preemptions: int | None = None
        self._preempted_at = -float("inf")
        self._bytes_per_token: OrderedDict[str, float] = OrderedDict()
        if self._configured:
            self.reported.set()

    def wake(self, names: Iterable[str]) -> None:
        for name in names:
            if (wait := self.waiting.get(name)) is not None:
                wait.over.set()

    def note_load(self, load: EngineLoad | None) -> None:
        self.reported.set()
        capacity = self._configured or (load.capacity if load is not None else None)
        self.wake(self.ledger.set_capacity(capacity))
        before, self._preemptions = self._preemptions, load.preemptions if load is not None else None
        now = anyio.current_time()
        if before is None or self._preemptions is None or now - self._preempted_at < PREEMPTION_PAUSE_S:
            return
        if self._preemptions > before:
            self._preempted_at = now
            self.ledger.note_preemptions()

    def tokens(self, program: str, size_bytes: int) -> int:
        """An estimate: the prompt's size by the bytes per token of this program, else of the last program."""
        ratio = self._bytes_per_token.get(program)
        if ratio is None:
            ratio = next(reversed(self._bytes_per_token.values()), FIRST_BYTES_PER_TOKEN)
        return int(size_bytes / ratio)

    def learn_ratio(self, program: str, size_bytes: int, usage: Usage) -> None:
        if usage.prompt_tokens and size_bytes:
            self._bytes_per_token[program] = size_bytes / usage.prompt_tokens
            self._bytes_per_token.move_to_end(program)
            while len(self._bytes_per_token) > MAX_PROGRAMS:
                self._bytes_per_token.popitem(last=False)

    def log_long_waits(self) -> None:
        now = anyio.current_time()
        for name, wait in self.waiting.items():
            if not wait.is_logged and now - wait.began >= LOGGED_WAIT_S:
                wait.is_logged = True
                logger.info(
                    "%s: the next turn of %s has waited %.0f s, because older conversations fill the KV cache: %r",
                    self.url,
                    name,
                    now - wait.began,
                    self.ledger,
                )


class AdmittedTurn:
    """A turn that may run. End it with `finish` if it was answered; `release` then does nothing."""

    def __init__(self, engine: _Engine | None = None, name: str = "", request: TurnRequest | None = None) -> None:
        self._engine = engine
        self._name = name
        self._request = request

    def __repr__(self) -> str:
        return f"<AdmittedTurn of {self._name or 'no program'}{'' if self._engine else ', ended'}>"

    def finish(self, usage: Usage, *, keeps_place: bool = True) -> None:
        """The answer is complete. The program's tools may run now. keeps_place: as for `TokenLedger.end_turn`."""
        engine, self._engine = self._engine, None
        if engine is None or self._request is None:
            return
        engine.learn_ratio(self._request.program, self._request.prompt_bytes, usage)
        engine.wake(engine.ledger.end_turn(self._name, usage, keeps_place=keeps_place))
        self._end_single(engine)

    def release(self) -> None:
        """The turn failed or was given up. A second call does nothing."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        engine.wake(engine.ledger.cancel_turn(self._name))
        self._end_single(engine)

    def _end_single(self, engine: _Engine) -> None:
        if self._request is None or self._name != self._request.program:
            engine.wake(engine.ledger.remove(self._name))


class ProgramAdmission:
    """The ledgers of all endpoints. If admission is off, every turn begins at once and nothing is kept."""

    def __init__(self, settings: AdmissionSettings, urls: Iterable[str]) -> None:
        self._engines = {url: _Engine(url, settings) for url in urls} if settings.enabled else {}
        self._someone_waits = anyio.Event()
        self._number = 0

    def __repr__(self) -> str:
        return f"<ProgramAdmission {[engine.ledger for engine in self._engines.values()] or 'off'}>"

    @property
    def is_on(self) -> bool:
        return bool(self._engines)

    @property
    def waiting(self) -> int:
        """How many turns wait."""
        return sum(len(engine.waiting) for engine in self._engines.values())

    async def begin(self, url: str, request: TurnRequest) -> AdmittedTurn | None:
        """Wait until the program may take a turn at this endpoint. None: choose an endpoint again."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        engine = self._engines.get(url)
        if engine is None:
            return AdmittedTurn()
        with anyio.move_on_after(FIRST_REPORT_S):
            await engine.reported.wait()
        engine.reported.set()  # an engine that is silent is not waited for twice
        # No await from here to the wait: the ledger and the waits must agree.
        name = self._name(engine, request.program)
        for other in self._engines.values():
            if other is not engine:
                self._remove(other, name)
        admitted = engine.ledger.begin_turn(
            name,
            prompt_tokens=engine.tokens(request.program, request.prompt_bytes),
            run=request.run,
            weight=request.weight,
            prefix=request.prefix,
            prefix_tokens=engine.tokens(request.program, request.prefix_bytes),
            parent=request.parent,
            is_rewritten=request.is_rewritten,
        )
        turn = AdmittedTurn(engine, name, request)
        engine.wake(admitted)
        return turn if name in admitted or await self._wait(engine, name, turn) else None

    async def run(self) -> None:
        """Look at waiting turns while there are any. Runs until cancelled."""
        while True:
            while not any(engine.waiting for engine in self._engines.values()):
                self._someone_waits = anyio.Event()
                await self._someone_waits.wait()
            await anyio.sleep(TICK_S)
            for engine in self._engines.values():
                engine.wake(engine.ledger.schedule())
                engine.log_long_waits()

    def remove(self, program: str) -> None:
        """The program is done."""
        for engine in self._engines.values():
            self._remove(engine, program)

    def note_load(self, url: str, load: EngineLoad | None) -> None:
        """An engine's report. None: it has no metrics, so its capacity is unknown."""
        if (engine := self._engines.get(url)) is not None:
            engine.note_load(load)

    def endpoint_failed(self, url: str) -> None:
        """The endpoint gets no requests for now. Turns that wait for it may go to another one."""
        engine = self._engines.get(url)
        for wait in engine.waiting.values() if engine is not None else ():
            wait.is_moved = True
            wait.over.set()

    def choose(self, urls: Iterable[str], request: TurnRequest, *, is_healthy: Callable[[str], bool]) -> str:
        """The endpoint for the next turn. urls: in the order in which the program prefers them.

        A program stays where its tokens are. One that has no place goes to the first endpoint that has room for it.
        """
        urls = list(urls)
        home = next((url for url in urls if request.program in self._engines[url].ledger), None)
        if home is not None and is_healthy(home):
            if self._engines[home].ledger.state(request.program) is State.ACTING:
                return home
            urls = [home, *urls]
        return next((url for url in urls if is_healthy(url) and self._has_room(url, request)), urls[0])

    def may_hint(self, program: str) -> bool:
        """Whether hints about this program make sense: not while it has no place in any cache."""
        states = [engine.ledger.state(program) for engine in self._engines.values()]
        return not any(state in (State.PAUSED, State.WAITING) for state in states)

    def pauses(self) -> dict[str, str]:
        """By program without a place: for how long it has had none, and why."""
        now = anyio.current_time()
        found: dict[str, str] = {}
        for engine in self._engines.values():
            ledger = engine.ledger.statistics()
            full = f", {ledger.used / ledger.capacity:.0%} of the cache in use" if ledger.capacity else ""
            found |= {each.name: f"{now - each.since:.0f} s: {each.why}{full}" for each in ledger.paused}
        return found

    def statistics(self, url: str) -> AdmissionStatistics | None:
        """None: admission is off."""
        engine = self._engines.get(url)
        if engine is None:
            return None
        now = anyio.current_time()
        waited_s = engine.waited_s + sum(now - wait.began for wait in engine.waiting.values())
        return AdmissionStatistics(engine.ledger.statistics(), engine.waits, waited_s)

    async def _wait(self, engine: _Engine, name: str, turn: AdmittedTurn) -> bool:
        """Whether the turn was admitted."""
        wait = engine.waiting[name] = _Wait(anyio.current_time())
        engine.waits += 1
        self._someone_waits.set()
        try:
            await wait.over.wait()
        except BaseException:
            turn.release()  # it may have been admitted in this moment
            raise
        finally:
            engine.waited_s += anyio.current_time() - wait.began
            del engine.waiting[name]
        if wait.is_moved:
            turn.release()
        return not wait.is_moved

    def _name(self, engine: _Engine, program: str) -> str:
        """The program's own name; another one for a request without a program, and for a second turn at once."""
        if program and engine.ledger.state(program) not in (State.WAITING, State.RUNNING):
            return program
        self._number += 1
        return f"{program}#{self._number}"

    def _has_room(self, url: str, request: TurnRequest) -> bool:
        engine = self._engines[url]
        return engine.ledger.has_room(engine.tokens(request.program, request.prompt_bytes))

    def _remove(self, engine: _Engine, name: str) -> None:
        if (wait := engine.waiting.get(name)) is not None:
            wait.is_moved = True
            wait.over.set()
        engine.wake(engine.ledger.remove(name))
