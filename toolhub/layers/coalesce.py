"""Equal calls that are in flight at the same time are made once; all of their callers get the answer.

The work of a flight runs in a task of the hub. So it does not end with the call that began it (its leader), but with
the last caller that waits for it. Every caller keeps its own deadline and its own cancellation, gets a copy of its own
of the answer or the error, and hears of progress in its own task: nothing that one does reaches another.

An error that is due to who led the flight (its task was closed; there was no room for it; its own server process was
broken) is not passed on to the calls of other tasks: they start over with a flight of their own. A flight that nobody
waits for any more is cancelled, and until it has ended no equal one begins.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import anyio
import anyio.abc

from toolhub.errors import CallError, HubClosed, Overloaded
from toolhub.layers import Handler, Layer
from toolhub.layers.cache_key import CacheTarget, coalesce_scope, key_of, may_write
from toolhub.layers.clone import clone_error, clone_json
from toolhub.model import Call, Delivery, FlightStatistics, Json, Result

# News that a slow listener has not taken yet; of more, the oldest are dropped rather than kept without end.
_MOST_NEWS = 1000

logger = logging.getLogger("toolhub.calls")


News = tuple[Callable[..., Awaitable[None]], tuple[Any, ...]]


@dataclass(eq=False, slots=True)
class _Follower:
    """One caller that waits for a flight; it runs its callbacks itself."""

    call: Call
    party: Party
    hears_logs: bool
    is_dismissed: bool = False
    wake: anyio.Event = field(default_factory=anyio.Event)
    news: deque[News] | None = None

    def tell(self, callback: Callable[..., Awaitable[None]], *news: Any) -> None:
        if self.news is None:
            self.news = deque(maxlen=_MOST_NEWS)
        self.news.append((callback, news))
        self.wake.set()

    def dismiss(self) -> None:
        self.is_dismissed = True
        self.wake.set()

    async def wait(self, flight: _Flight) -> None:
        """Wait until the flight has landed and all news were heard, or until dismissed."""
        while True:
            await self.wake.wait()
            while self.news:
                await self._hear(*self.news.popleft())
            if self.is_dismissed or flight.has_landed:
                return
            self.wake = anyio.Event()

    async def _hear(self, callback: Callable[..., Awaitable[None]], news: tuple[Any, ...]) -> None:
        try:
            await callback(*news)
        except Exception:
            logger.exception("a callback of %s raised", self.call.id)


@dataclass(eq=False, slots=True)
class _Flight:
    """One execution and who waits for it. `call` is the work's own: its delivery tells how far the work got."""

    call: Call
    party: Party
    share: str
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    followers: dict[_Follower, None] = field(default_factory=dict)
    result: Result | None = None
    error: Exception | None = None
    _ended: anyio.Event | None = None

    @property
    def is_private(self) -> bool:
        """Whether it runs in a session that belongs to its leader's task."""
        return self.share != "hub"

    @property
    def has_landed(self) -> bool:
        return self.result is not None or self.error is not None

    def land(self, result: Result | None, error: Exception | None) -> None:
        if result is None and error is None:
            error = HubClosed(f"{self.call.server}/{self.call.tool} was cut off: what it ran in is closed")
        self.result, self.error = result, error
        if self._ended is not None:
            self._ended.set()
        for follower in self.followers:
            follower.wake.set()

    async def wait(self, call: Call, party: Party) -> None:
        """Wait for the end on behalf of `call`; the last one out cancels the work. Raises HubClosed if dismissed."""
        # Log lines carry no request id: those of a task's own session may be about anything that this task does.
        follower = _Follower(call, party, hears_logs=self.share != "task" or self.party is party)
        self.followers[follower] = None
        try:
            await follower.wait(self)
        finally:
            del self.followers[follower]
            if not self.followers and not self.has_landed:
                self.scope.cancel()
            _settle(call.delivery, self.call.delivery)
        if not self.has_landed:
            raise HubClosed(f"the task was closed during {call.server}/{call.tool}")

    async def wait_ended(self) -> None:
        """Wait for the end of the work as one who has no part in it."""
        self._ended = self._ended or anyio.Event()
        await self._ended.wait()

    def dismiss(self, party: Party) -> None:
        """The party's task is closed: its calls wait no longer, and what runs in its sessions ends."""
        if self.party is party:
            self.scope.cancel()
        for follower in self.followers:
            if follower.party is party:
                follower.dismiss()

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        for follower in self.followers:
            if follower.call.on_progress is not None:
                follower.tell(follower.call.on_progress, progress, total, message)

    async def log(self, params: Json) -> None:
        for follower in self.followers:
            if follower.call.on_log is not None and follower.hears_logs:
                follower.tell(follower.call.on_log, clone_json(params))

    def outcome(self, call: Call) -> Result:
        """The answer for one caller, or its error raised; only the last one to ask gets the original."""
        if self.error is not None:
            error = clone_error(self.error) if self.followers else self.error
            if isinstance(error, CallError):
                error.call_id = call.id
            raise error
        assert self.result is not None
        return Result(clone_json(self.result.raw)) if self.followers else self.result


def _settle(own: Delivery, flown: Delivery) -> None:
    """What the flight did was done for this call; an earlier flight of it may have been sent already."""
    own.attempts += flown.attempts
    own.sent_at = flown.sent_at or own.sent_at
    if flown.sent == "maybe":
        own.sent = "maybe"


def _has_the_time(call: Call, refused: Call, error: Overloaded) -> bool:
    """Whether `call` could wait for its turn although `refused` could not."""
    if error.retry_after is None:
        return False
    turn = anyio.current_time() + error.retry_after
    return refused.deadline < turn <= call.deadline


class Flights:
    """All flights of a hub. `owners` is the task group in which the work runs."""

    def __init__(self, owners: anyio.abc.TaskGroup) -> None:
        self.owners = owners
        self.by_key: dict[str, _Flight] = {}
        self.flights = self.coalesced = self.restarts = 0
        self._numbers = itertools.count(1)

    def __repr__(self) -> str:
        return f"<Flights {len(self.by_key)} flown={self.flights} coalesced={self.coalesced}>"

    def party(self, is_closed: Callable[[], bool]) -> Party:
        """The calls of one task. is_closed: whether it has been closed."""
        return Party(self, next(self._numbers), is_closed)

    def statistics(self) -> FlightStatistics:
        return FlightStatistics(self.flights, self.coalesced, self.restarts, len(self.by_key))


class Party:
    """The calls of one task, as far as they share flights. Get one from `Flights.party()`."""

    def __init__(self, flights: Flights, number: int, is_closed: Callable[[], bool]) -> None:
        self.number = number
        self.is_closed = is_closed
        self._flights = flights

    async def fly(self, key: str, call: Call, share: str, work: Handler) -> Result:
        """Return the answer of the flight for `key`, beginning it if there is none. share: the server's."""
        has_second_opinion = False
        while True:
            flight = self._flights.by_key.get(key)
            if flight is None:
                flight = self._begin(key, call, share, work)
            elif flight.scope.cancel_called:
                await flight.wait_ended()
                continue
            else:
                self._flights.coalesced += 1
            await flight.wait(call, self)
            excuse = None if flight.error is None else self._excuse(flight, call)
            if excuse is None or (excuse == "broken" and has_second_opinion):
                return flight.outcome(call)
            has_second_opinion = has_second_opinion or excuse == "broken"
            self._flights.restarts += 1

    def _begin(self, key: str, call: Call, share: str, work: Handler) -> _Flight:
        flight = _Flight(call, self, share)
        is_heard = call.on_progress is not None or call.on_log is not None
        flight.call = replace(
            call,
            arguments=clone_json(dict(call.arguments)),  # the caller may leave, and change its own
            delivery=Delivery(),
            on_progress=flight.progress if is_heard else None,
            on_log=flight.log if is_heard else None,
        )
        self._flights.by_key[key] = flight
        try:
            self._flights.owners.start_soon(self._run, key, flight, work, name="flight")
        except RuntimeError as exc:
            del self._flights.by_key[key]
            raise HubClosed("the hub is closed") from exc
        self._flights.flights += 1
        return flight

    async def _run(self, key: str, flight: _Flight, work: Handler) -> None:
        result: Result | None = None
        error: Exception | None = None
        try:
            with flight.scope:
                if not flight.scope.cancel_called:  # its leader may have gone before it began
                    result = await work(flight.call)
        except Exception as exc:
            error = exc
        finally:
            del self._flights.by_key[key]
            flight.land(result, error)

    def _excuse(self, flight: _Flight, call: Call) -> Literal["closed", "refused", "broken"] | None:
        """Why the flight failed, if the reason is its leader's and not this call's."""
        is_foreign = flight.party is not self
        if self.is_closed():
            return None
        if flight.party.is_closed():
            return "closed" if is_foreign else None
        if isinstance(flight.error, Overloaded):
            return "refused" if is_foreign or _has_the_time(call, flight.call, flight.error) else None
        # That one task's server is broken proves little; that a second one's is, too, proves enough.
        return "broken" if is_foreign and flight.is_private and isinstance(flight.error, CallError) else None

    def disband(self) -> None:
        """The task is closed: its calls to servers of its own end at once, also those that wait their turn."""
        for flight in self._flights.by_key.values():
            if flight.is_private:
                flight.dismiss(self)


def coalesce(party: Party, target_of: Callable[[Call], CacheTarget]) -> Layer:
    """Make equal calls once, where the tool is declared safe to repeat and the server's `coalesce` allows it."""

    def layer(inner: Handler) -> Handler:
        async def handle(call: Call) -> Result:
            if not call.policy.is_safe_to_repeat:
                return await work(call)
            target = target_of(call)
            scope = coalesce_scope(target.spec, call.policy)
            if scope == "off":
                return await work(call)
            # A server is asked for progress only if somebody listens, so who listens flies with those who do.
            is_heard = call.on_progress is not None or call.on_log is not None
            key = key_of(call, target, scope, party.number if scope == "task" else 0, is_heard)
            if key is None:
                return await work(call)
            return await party.fly(key, call, target.spec.share, work)

        async def work(call: Call) -> Result:
            target = target_of(call)
            if not may_write(call, target):
                return await inner(call)
            try:
                return await inner(call)
            finally:
                target.writes += 1

        return handle

    return layer
