"""A slot keeps one session with a server available.

It starts a session on demand. Callers that come while a session starts wait for the same start. The slot notices the
death of its session at once, also while idle. Two calls that fail together cause one restart, because only the slot
starts and ends sessions.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType

import anyio
import anyio.abc

from toolhub.channel.base import Channel
from toolhub.config import ServerSpec
from toolhub.errors import CircuitOpen, HubClosed, Overloaded, ProtocolViolation, SessionLost, StartError
from toolhub.layers.clone import clone_error
from toolhub.limits.backoff import Backoff, RestartIntensity
from toolhub.limits.budget import Budget
from toolhub.limits.start_limiter import StartLimiter
from toolhub.model import ClientProfile, FairShareKey, Listener, SlotKey, SlotStatistics
from toolhub.owned import Held, hold
from toolhub.sessions.events import ServerEvents
from toolhub.sessions.lifecycle import SessionEvent, SessionState, SlotEvent, SlotState, advance
from toolhub.sessions.session import Session, open_session


@dataclass(eq=False)
class _Start:
    """One start, which any number of callers may wait for."""

    done: anyio.Event = field(default_factory=anyio.Event)
    error: Exception | None = None
    has_begun: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


@dataclass(eq=False)
class Counters:
    """Counts of one slot, or of all slots of a hub."""

    starts: int = 0
    deaths: int = 0
    calls: int = 0


class Checkout:
    """One use of a slot's session. A class instead of a generator saves some microseconds per call."""

    __slots__ = ("_session", "_slot", "_uses_state")

    def __init__(self, slot: Slot, uses_state: bool) -> None:
        self._slot = slot
        self._uses_state = uses_state
        self._session: Session | None = None

    async def __aenter__(self) -> Session:
        slot = self._slot
        slot.begin_use()
        try:
            if self._uses_state:
                slot.raise_if_state_lost()
            self._session = await slot.ready_session()
        except BaseException:
            slot.end_use(None)
            raise
        return self._session

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._uses_state and self._session is not None and isinstance(exc, SessionLost):
            self._slot.mark_state_lost(exc, self._session)
        self._slot.end_use(self._session)


class Slot:
    """See the module's text. `owners` is the task group that its sessions live in."""

    def __init__(
        self,
        key: SlotKey,
        spec: ServerSpec,
        *,
        open_channel: Callable[[ServerSpec, ClientProfile], AbstractAsyncContextManager[Channel]],
        owners: anyio.abc.TaskGroup,
        starts: StartLimiter,
        on_session: Callable[[Session], None] | None = None,
        totals: Counters | None = None,
        budget: Budget | None = None,
        share_key: FairShareKey | None = None,
        events: ServerEvents | None = None,
    ) -> None:
        """budget: limits the processes of all slots; None: no limit. share_key: whom its starts count for."""
        self.key = key
        self.spec = spec
        self.profile = key.profile
        """On whose behalf its next session is opened."""
        self.listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        """The clients that have used it and have a stream for what belongs to no request."""
        self.state = SlotState.IDLE
        self.counters = Counters()
        self.last_error: str | None = None
        self.start_seconds: float | None = None
        self.in_use = 0
        self._open_channel = open_channel
        self._owners = owners
        self._starts = starts
        self._on_session = on_session
        self._totals = totals or Counters()
        self._events = events or ServerEvents()
        self._budget = budget if spec.transport == "stdio" else None
        self._share_key = share_key or FairShareKey(key.owner)
        self._held: Held[Session] | None = None
        self._start: _Start | None = None
        self._closed = False
        self._unreported_state_loss = False
        self._is_half_open = False
        self._circuit_opened_at = 0.0
        self._last_used = anyio.current_time()
        rules = spec.restart
        self._backoff = Backoff(rules.backoff_s, rules.max_backoff_s)
        self._intensity = RestartIntensity(rules.max_deaths, rules.window_s)

    def adopt(self, profile: ClientProfile) -> None:
        """Open the next session on behalf of this client. A session that is open or being opened stays as it is."""
        if self._held is None and self._start is None:
            self.profile = profile

    @property
    def session(self) -> Session | None:
        """The session, if it is open."""
        return self._held.value if self._held is not None else None

    def __repr__(self) -> str:
        return f"<Slot {self.key.server}/{self.key.owner} {self.state.name} in_use={self.in_use}>"

    def checkout(self, *, uses_state: bool = True) -> Checkout:
        """Hold a ready session for one call; start one if there is none. A held session is not stopped as idle.

        uses_state: False for listing tools, which is not affected when the server lost its state.
        Raises StartError if it did not come up (nothing was sent), CircuitOpen if it died too often to be worth
        starting, SessionLost(state_lost=True, sent="no") once after a server that keeps state died between calls.
        """
        return Checkout(self, uses_state)

    def begin_use(self) -> None:
        self.in_use += 1
        self.counters.calls += 1
        self._totals.calls += 1

    def end_use(self, session: Session | None) -> None:
        """session: the one that was used; None if there was none."""
        if session is not None:
            self._record_state_loss(session)
        self.in_use -= 1
        if not self.in_use:
            self._last_used = anyio.current_time()
            if self._budget is not None and self._budget.waiting:
                self._budget.check()

    async def warm(self) -> None:
        """Start the session if there is none."""
        await self.ready_session()

    async def ready_session(self) -> Session:
        """Return the session, started if there is none. Raises what `checkout()` raises."""
        while True:
            if self._closed:
                raise HubClosed(f"server {self.spec.name!r} is being shut down")
            if self.state is SlotState.LIVE and self._held is not None:
                return self._held.value
            start = self._start or self._begin_start()
            self._refuse_if_too_late(start)
            await start.done.wait()
            if start.error is not None:
                raise clone_error(start.error)

    # --- starting ---------------------------------------------------------------------------------------------------

    def _begin_start(self) -> _Start:
        """Begin a start, without waiting. It runs in a task of its own, so that no cancelled caller can stop it."""
        self._is_half_open = self.state is SlotState.CIRCUIT_OPEN
        if self._is_half_open:
            self._refuse_while_circuit_open()
        self.state = advance(self.state, SlotEvent.START)
        self._start = start = _Start()
        self._owners.start_soon(self._run_start, start, name=f"start {self.spec.name}")
        return start

    def _refuse_if_too_late(self, start: _Start) -> None:
        """Raise Overloaded if the start would begin only after the caller's deadline."""
        expected = 0.0 if start.has_begun else self._starts.expected_wait(self._share_key)
        if expected > 0 and anyio.current_time() + expected > anyio.current_effective_deadline():
            raise Overloaded(
                f"server {self.spec.name!r} would begin to start in about {expected:.1f} s, after the deadline of "
                f"this call: {self._starts.in_use} others are starting (hub.max_starts)",
                server=self.spec.name,
                retry_after=expected,
            )

    def _refuse_while_circuit_open(self) -> None:
        cooldown = self.spec.restart.cooldown_s
        waited = anyio.current_time() - self._circuit_opened_at
        if cooldown is not None and waited >= cooldown:
            return
        retry = f"; one more start is tried in {cooldown - waited:.0f} s" if cooldown is not None else ""
        raise CircuitOpen(
            f"server {self.spec.name!r} was given up {waited:.0f} s ago after {self.counters.deaths} deaths{retry}. "
            f"Last: {self.last_error}",
            server=self.spec.name,
            since=waited,
            deaths=self.counters.deaths,
        )

    async def _run_start(self, start: _Start) -> None:
        try:
            with start.scope:
                self._started(await self._open(start))
        except Overloaded as exc:
            start.error = exc  # the start was refused, not tried: this is no death
            self.state = advance(self.state, SlotEvent.STOPPED)
        except StartError as exc:
            self._start_failed(exc)
            start.error = exc
        except Exception as exc:
            start.error = StartError(f"server {self.spec.name!r} did not start: {exc!r}", server=self.spec.name)
            start.error.__cause__ = exc
            self._start_failed(start.error)
        finally:
            if self.state is SlotState.STARTING:
                # Its owner was cancelled. Callers must not wait for this start any longer.
                self.state = advance(self.state, SlotEvent.STOPPED)
                start.error = HubClosed(f"server {self.spec.name!r} was being started when its owner closed")
            self._start = None
            start.done.set()

    async def _open(self, start: _Start) -> Held[Session]:
        # The first start after a death is immediate; each further one within the window waits longer.
        await anyio.sleep(self._backoff.delay(self._intensity.recent(anyio.current_time()) - 1))
        return await hold(
            self._owners, self._budgeted_session(start), until=Session.wait_dead, name=f"session {self.spec.name}"
        )

    @asynccontextmanager
    async def _budgeted_session(self, start: _Start) -> AsyncIterator[Session]:
        """Hold a session together with its share of the budget, from before its start until it has ended."""
        async with AsyncExitStack() as stack:
            if self._budget is not None:
                timeout = self.spec.start_timeout_s
                await stack.enter_async_context(self._budget.room(self.spec.name, self._share_key, timeout))
            async with self._starts.place(self._owners, self._share_key):
                began = anyio.current_time()
                start.has_begun = True
                self._events.starting(self.spec, self.key.owner, deaths=self.counters.deaths)
                self.counters.starts += 1
                self._totals.starts += 1
                session = await stack.enter_async_context(
                    open_session(self.spec, self._open_channel(self.spec, self.profile))
                )
                self.start_seconds = anyio.current_time() - began
            yield session

    def _started(self, held: Held[Session]) -> None:
        self._held = held
        held.value.listen(self.listeners)
        if any(listener.subscriptions or listener.log_level for listener in self.listeners):
            self._owners.start_soon(self._restore, held.value, name=f"restore {self.spec.name}")
        self.state = advance(self.state, SlotEvent.STARTED)
        self._events.ready(self.spec, self.key.owner, pid=held.value.pid, seconds=self.start_seconds or 0.0)
        self._owners.start_soon(self._watch, held, name=f"watch {self.spec.name}")
        if self._on_session is not None:
            self._on_session(held.value)

    async def _restore(self, session: Session) -> None:
        """Tell a server that was started again what its clients had asked the one before for."""
        wanted = [("resources/subscribe", {"uri": uri}) for one in tuple(self.listeners) for uri in one.subscriptions]
        levels = [("logging/setLevel", {"level": one.log_level}) for one in tuple(self.listeners) if one.log_level]
        try:
            for method, params in wanted + levels if session.info.era == "handshake" else []:
                await session.request(method, params)
        except (SessionLost, ProtocolViolation) as exc:
            self.last_error = str(exc)  # the clients hear of it with their next call

    async def _watch(self, held: Held[Session]) -> None:
        """Wait for the session's end and record it."""
        await held.value.wait_dead()
        session = held.value
        calls, is_given_up = session.call_ids, False
        if self._held is held and not held.is_released:
            # Done before the clean-up ends, so that the next caller never gets a dead session.
            self._held = None
            session.handle(SessionEvent.DEATH)
            self._record_state_loss(session)
            is_given_up = self._died(session.describe_exit())
        await held.wait_closed()
        if session.state is SessionState.FAILED:
            self.last_error = session.describe_exit()
            self._events.died(self.spec, self.key.owner, self.last_error, pid=session.pid, calls=calls)
            if is_given_up:
                self._report_given_up(self.last_error)

    def _start_failed(self, exc: StartError) -> None:
        is_given_up = self._died(str(exc))
        self._events.start_failed(self.spec, self.key.owner, str(exc))
        if is_given_up:
            self._report_given_up(str(exc))

    def _report_given_up(self, reason: str) -> None:
        self._events.given_up(self.spec, self.key.owner, reason, deaths=self.counters.deaths)

    def _died(self, reason: str) -> bool:
        """Count a death; True if that was one too many and the server is given up."""
        self.last_error = reason
        self.counters.deaths += 1
        self._totals.deaths += 1
        now = anyio.current_time()
        if self._intensity.record(now) and not (self._is_half_open and self.state is SlotState.STARTING):
            self.state = advance(self.state, SlotEvent.DIED)
            return False
        self._circuit_opened_at = now
        self._intensity.reset()
        self.state = advance(self.state, SlotEvent.CIRCUIT_OPENED)
        return True

    # --- state loss -------------------------------------------------------------------------------------------------

    def raise_if_state_lost(self) -> None:
        """Raise SessionLost if a death between calls lost state. Does so once per death."""
        is_lost, self._unreported_state_loss = self._unreported_state_loss, False
        if is_lost:
            raise SessionLost(
                f"server {self.spec.name!r} died between calls and what it kept in memory is gone ({self.last_error}); "
                "nothing was sent. The next call starts the server again, without the lost state",
                server=self.spec.name,
                sent="no",
                state_lost=True,
            )

    def mark_state_lost(self, exc: SessionLost, session: Session) -> None:
        """Mark the error of a call in flight with `state_lost`, so that the next call need not fail too."""
        if self.spec.is_stateful and session.calls > 0:
            exc.state_lost = session.state_loss_reported = True

    def _record_state_loss(self, session: Session) -> None:
        """When a stateful server died while no call was running, make the next call raise SessionLost once."""
        is_over = session.state is SessionState.FAILED and session.in_flight == 0
        if is_over and self.spec.is_stateful and session.calls > 0 and not session.state_loss_reported:
            self._unreported_state_loss = session.state_loss_reported = True

    # --- stopping ---------------------------------------------------------------------------------------------------

    @property
    def may_be_evicted(self) -> bool:
        """Whether it has an idle session whose end loses no state."""
        if self.in_use or self._held is None or self.spec.keep_warm:
            return False
        return self._held.value.calls == 0 or idle_limit(self.spec) is not None

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last call ended; 0 while one runs."""
        return 0.0 if self.in_use else anyio.current_time() - self._last_used

    async def stop_if_idle(self, limit: float) -> bool:
        """End the session if nothing used it for `limit` seconds; True if it was ended."""
        if self.in_use or self._held is None or self.idle_seconds < limit:
            return False
        await self._stop()
        return True

    async def aclose(self) -> None:
        """End the session for ever. Calls in flight fail with SessionLost."""
        self._closed = True
        if (start := self._start) is not None:
            start.scope.cancel()
            await start.done.wait()
        await self._stop()

    async def _stop(self) -> None:
        held, self._held = self._held, None
        if held is None:
            return
        held.release()
        if held.value.is_ready:
            held.value.handle(SessionEvent.CLOSE)
        if self.state is SlotState.LIVE:
            self.state = advance(self.state, SlotEvent.STOPPED)
        await held.aclose()

    def statistics(self) -> SlotStatistics:
        session = self._held.value if self._held else None
        return SlotStatistics(
            server=self.key.server,
            owner=self.key.owner,
            state=self.state.name,
            pid=session.pid if session else None,
            starts=self.counters.starts,
            deaths=self.counters.deaths,
            calls=self.counters.calls,
            in_flight=self.in_use,
            start_seconds=self.start_seconds,
            idle_seconds=self.idle_seconds,
            last_error=self.last_error,
            protocol=session.info.protocol if session else None,
            era=session.info.era if session else None,
        )


def idle_limit(spec: ServerSpec) -> float | None:
    """Return the seconds until an idle session is stopped; None: never.

    A stateful server is stopped only if the config sets `idle_s`.
    """
    if spec.keep_warm or (spec.is_stateful and "idle_s" not in spec.model_fields_set):
        return None
    return spec.idle_s
