"""How many requests an endpoint gets at once.

Each endpoint has a number of slots. A request holds a slot while it runs; the others wait here, first come, first
served. The number follows the engine's own queue, which the engine reports at `/metrics`: additive increase and
multiplicative decrease (AIMD), as in TCP. More requests than the engine runs would only wait inside the engine, where
they can be neither reordered nor moved. Fewer would leave it idle. So the number goes up while all slots are used and
no request waits in the engine, and down when more than `target_waiting` wait there.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
import httpx2

from toolhub_agent.errors import LlmUnavailable
from toolhub_agent.llm.transport import HTTP_ERRORS, BodyTooLarge, engine_root, read_body

# --- The AIMD rule ----------------------------------------------------------------------------------------------------
# How many requests an endpoint gets at once: follows the engine's own queue (AIMD, as TCP does). Pure.
#
# More requests than the engine runs only wait inside it, where they can neither be reordered nor moved; fewer leave it
# idle. So: up while all slots are used and nothing waits there, down when more than `target_waiting` wait.

START_SLOTS = 64
MIN_SLOTS, MAX_SLOTS = 1, 1024
# Of the cut when too many wait, and of the growth before the first cut (then it is one more per load).
DECREASE, PROBING_INCREASE = 0.75, 1.25
# Above this share of KV memory one more request would only preempt another.
FULL_USAGE = 0.95


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine tells of itself. usage: share of its KV memory that running requests hold, 0 to 1."""

    waiting: int
    running: int
    usage: float = 0.0


@dataclass(frozen=True, slots=True)
class SlotLimit:
    """slots: at once. is_probing: nothing has ever waited, so it grows fast."""

    slots: int = START_SLOTS
    is_probing: bool = True


def update_limit(limit: SlotLimit, load: EngineLoad | None, *, in_use: int, target_waiting: int) -> SlotLimit:
    """The limit after one load. in_use: slots held now. None: the engine tells nothing, so the start value."""
    if load is None:
        return SlotLimit()
    if load.waiting > target_waiting:
        # What is above an earlier cut must run out first: cutting again for it would go down to one.
        return SlotLimit(max(MIN_SLOTS, int(limit.slots * DECREASE)), False) if in_use <= limit.slots else limit
    if in_use < limit.slots or load.waiting > 0 or load.usage >= FULL_USAGE:
        return limit
    grown = int(limit.slots * PROBING_INCREASE) if limit.is_probing else 0
    return SlotLimit(min(MAX_SLOTS, max(limit.slots + 1, grown)), limit.is_probing)


# --- Slots ------------------------------------------------------------------------------------------------------------
# Slots: how many requests are at an endpoint at once. First come, first served; the number may change at any time.

# More than this waiting for one endpoint is a runaway caller.
MAX_QUEUE = 10_000


@dataclass(frozen=True, slots=True)
class SlotStatistics:
    """One endpoint's slots."""

    limit: int
    in_use: int
    waiting: int


@dataclass(eq=False)
class _Waiter:
    granted: anyio.Event = field(default_factory=anyio.Event)


@dataclass
class _EndpointSlots:
    limit: int
    in_use: int = 0
    waiters: deque[_Waiter] = field(default_factory=deque)

    def grant(self) -> None:
        """Hand free slots to those who wait longest."""
        while self.waiters and self.in_use < self.limit:
            self.in_use += 1
            self.waiters.popleft().granted.set()


class Slot:
    """A slot that is held; give it back once."""

    def __init__(self, limiter: ConcurrencyLimiter, endpoint: str) -> None:
        self._limiter: ConcurrencyLimiter | None = limiter
        self.endpoint = endpoint

    def __repr__(self) -> str:
        return f"<Slot at {self.endpoint}, {'held' if self._limiter else 'given back'}>"

    def release(self) -> None:
        """May be called again; that does nothing."""
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter._give_back(self.endpoint)


class ConcurrencyLimiter:
    """The slots of all endpoints."""

    def __init__(self, limit: int = START_SLOTS) -> None:
        self._first_limit = limit
        self._lanes: dict[str, _EndpointSlots] = {}
        self._busy: anyio.Event | None = None

    def __repr__(self) -> str:
        lanes = ", ".join(f"{url}: {lane.in_use}/{lane.limit}+{len(lane.waiters)}" for url, lane in self._lanes.items())
        return f"<ConcurrencyLimiter {lanes or 'unused'}>"

    async def acquire(self, endpoint: str, *, deadline: float) -> Slot:
        """Return a slot once there is one. deadline: absolute, on the anyio clock.

        Raises LlmUnavailable if there was none until then.
        """
        lane = self._lane(endpoint)
        await anyio.lowlevel.checkpoint_if_cancelled()
        if lane.in_use < lane.limit:  # then nobody waits: whatever becomes free is handed over at once
            lane.in_use += 1
        else:
            await self._wait(endpoint, lane, deadline)
        self._tell_busy()
        return Slot(self, endpoint)

    @asynccontextmanager
    async def hold(self, endpoint: str, *, deadline: float) -> AsyncIterator[Slot]:
        """Hold a slot for the block; see `acquire`."""
        slot = await self.acquire(endpoint, deadline=deadline)
        try:
            yield slot
        finally:
            slot.release()

    def set_limit(self, endpoint: str, limit: int) -> None:
        """Below what is held: nobody is interrupted, nobody starts until enough have ended."""
        lane = self._lane(endpoint)
        lane.limit = max(1, limit)
        lane.grant()

    def statistics(self, endpoint: str) -> SlotStatistics:
        lane = self._lane(endpoint)
        return SlotStatistics(lane.limit, lane.in_use, len(lane.waiters))

    @property
    def is_busy(self) -> bool:
        return any(lane.in_use or lane.waiters for lane in self._lanes.values())

    async def wait_busy(self) -> None:
        """Return as soon as anyone holds a slot."""
        while not self.is_busy:
            if self._busy is None:
                self._busy = anyio.Event()
            await self._busy.wait()

    async def _wait(self, endpoint: str, lane: _EndpointSlots, deadline: float) -> None:
        if len(lane.waiters) >= MAX_QUEUE:
            raise LlmUnavailable(f"{endpoint}: {MAX_QUEUE} requests already wait for a slot", endpoint=endpoint)
        waiter = _Waiter()
        lane.waiters.append(waiter)
        try:
            with anyio.fail_at(deadline):
                await waiter.granted.wait()
        except BaseException as exc:
            # Whoever gives up although a slot was handed over in the same moment passes it on.
            if waiter.granted.is_set():
                self._give_back(endpoint)
            else:
                lane.waiters.remove(waiter)
            if isinstance(exc, TimeoutError):
                raise LlmUnavailable(_none_free(endpoint, lane), endpoint=endpoint) from None
            raise

    def _give_back(self, endpoint: str) -> None:
        lane = self._lanes[endpoint]
        lane.in_use -= 1
        lane.grant()

    def _tell_busy(self) -> None:
        if self._busy is not None:
            self._busy.set()
            self._busy = None

    def _lane(self, endpoint: str) -> _EndpointSlots:
        lane = self._lanes.get(endpoint)
        if lane is None:
            lane = self._lanes[endpoint] = _EndpointSlots(self._first_limit)
        return lane


def _none_free(endpoint: str, lane: _EndpointSlots) -> str:
    return f"{endpoint}: no slot became free in time ({lane.in_use} of {lane.limit} in use, {len(lane.waiters)} wait)"


# --- The engine's own queue -------------------------------------------------------------------------------------------
# What an engine tells about its queue at `/metrics`: load the Prometheus text, and asking for it now and then.

# A scrape that takes longer tells of the past; one that is larger is not an engine's.
SCRAPE_TIMEOUT_S = 2.0
MAX_METRICS_BYTES = 8 << 20
# An endpoint without metrics is asked again after this long; a proxy may have got a new server behind it.
NO_METRICS_RETRY_S = 60.0

# Engine's own names: vLLM (the older spelling of usage too), SGLang, llama.cpp.
WAITING = frozenset({"vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred"})
RUNNING = frozenset({"vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"})
USAGE = frozenset(
    {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage", "llamacpp:kv_cache_usage_ratio"}
)
_METRIC_LINE = re.compile(
    rf"^({'|'.join(sorted(WAITING | RUNNING | USAGE))})(?:\{{[^\n]*\}})?[ \t]+(\S+)(?:[ \t]+\S+)?[ \t\r]*$",
    re.MULTILINE,
)


def read_metrics(text: str) -> EngineLoad | None:
    """The queue in a page of metrics, added up over ranks; None if the page tells of no queue."""
    waiting: list[float] = []
    running: list[float] = []
    usage = [0.0]
    for name, written in _METRIC_LINE.findall(text):
        value = _number(written)
        (waiting if name in WAITING else running if name in RUNNING else usage).append(value)
    if not waiting:
        return None
    return EngineLoad(int(sum(waiting)), int(sum(running)), min(1.0, max(usage)))


def _number(written: str) -> float:
    try:
        value = float(written)
    except ValueError:
        return 0.0
    return value if 0 <= value < 1e9 else 0.0  # NaN compares false


class LoadScraper:
    """Asks one endpoint every `interval` seconds, but only while requests are in use anywhere."""

    def __init__(
        self,
        endpoint: str,
        client: httpx2.AsyncClient,
        limiter: ConcurrencyLimiter,
        *,
        interval: float,
        update: Callable[[str, EngineLoad | None], None],
    ) -> None:
        self._endpoint = endpoint
        self._url = f"{engine_root(endpoint)}/metrics"
        self._client = client
        self._limiter = limiter
        self._interval = interval
        self._update = update

    def __repr__(self) -> str:
        return f"<LoadScraper of {self._url} every {self._interval} s>"

    async def run(self) -> None:
        """Until cancelled. Never raises. An endpoint without metrics is told as None; one that is too busy or away
        to answer is not told of at all.
        """
        while True:
            await self._limiter.wait_busy()
            pause = self._interval
            try:
                load = await self._ask()
            except (*HTTP_ERRORS, TimeoutError):
                pass
            else:
                self._update(self._endpoint, load)
                pause = self._interval if load else max(NO_METRICS_RETRY_S, self._interval)
            await anyio.sleep(pause)

    async def _ask(self) -> EngineLoad | None:
        with anyio.fail_after(SCRAPE_TIMEOUT_S):
            async with self._client.stream("GET", self._url) as response:
                if 400 <= response.status_code < 500:
                    return None
                response.raise_for_status()
                try:
                    content = await read_body(response, MAX_METRICS_BYTES)
                except BodyTooLarge:
                    return None
                return read_metrics(content.decode(errors="replace"))
