"""How many requests an endpoint gets at once.

Each endpoint has a number of slots. A request holds a slot while it runs. The others wait here, first come, first
served. The number of slots follows the engine's own queue, which the engine reports at `/metrics`: additive increase
and multiplicative decrease (AIMD), as in TCP. Further requests would only wait inside the engine, where they can be
neither reordered nor moved. Fewer requests would leave the engine idle. So the number goes up while all slots are used
and no request waits in the engine, and down when more than `target_waiting` wait there.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
import httpx2

from toolhub_agent.errors import LlmUnavailable
from toolhub_agent.llm.transport import HTTP_ERRORS, BodyTooLarge, engine_root, read_body

# --- The AIMD rule ----------------------------------------------------------------------------------------------------


START_SLOTS = 64
MIN_SLOTS, MAX_SLOTS = 1, 1024
# The factor of a decrease, and the factor of each increase before the first decrease. Later increases add one slot.
DECREASE, PROBING_INCREASE = 0.75, 1.25
# Above this share of KV memory one more request would only preempt another.
FULL_USAGE = 0.95


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The load that an engine reports. usage: share of its KV memory that running requests hold, 0 to 1.

    capacity: tokens that its KV memory holds; None: it reports none. preemptions: how often it interrupted a request.
    """

    waiting: int
    running: int
    usage: float = 0.0
    capacity: int | None = None
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class SlotLimit:
    """slots: requests at once. is_probing: no request has ever waited in the engine, so the limit grows fast."""

    slots: int = START_SLOTS
    is_probing: bool = True


def update_limit(limit: SlotLimit, load: EngineLoad | None, *, in_use: int, target_waiting: int) -> SlotLimit:
    """The limit after a report. in_use: slots held now. load: None if the engine reports none; resets the limit."""
    if load is None:
        return SlotLimit()
    if load.waiting > target_waiting:
        # Requests above an earlier limit must end first. A decrease at every report would go down to one.
        return SlotLimit(max(MIN_SLOTS, int(limit.slots * DECREASE)), False) if in_use <= limit.slots else limit
    if in_use < limit.slots or load.waiting > 0 or load.usage >= FULL_USAGE:
        return limit
    grown = int(limit.slots * PROBING_INCREASE) if limit.is_probing else 0
    return SlotLimit(min(MAX_SLOTS, max(limit.slots + 1, grown)), limit.is_probing)


# --- Slots ------------------------------------------------------------------------------------------------------------
# How many requests are at an endpoint at once. First come, first served. The number may change at any time.

# If more requests wait for one endpoint, the caller is out of control.
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
        """Give free slots to the requests that have waited longest."""
        while self.waiters and self.in_use < self.limit:
            self.in_use += 1
            self.waiters.popleft().granted.set()


class Slot:
    """A held slot."""

    def __init__(self, limiter: ConcurrencyLimiter, endpoint: str) -> None:
        self._limiter: ConcurrencyLimiter | None = limiter
        self.endpoint = endpoint

    def __repr__(self) -> str:
        return f"<Slot at {self.endpoint}, {'held' if self._limiter else 'given back'}>"

    def release(self) -> None:
        """Give the slot back. A second call does nothing."""
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter._give_back(self.endpoint)


class ConcurrencyLimiter:
    """The slots of all endpoints."""

    def __init__(self, limit: int = START_SLOTS) -> None:
        self._first_limit = limit
        self._slots: dict[str, _EndpointSlots] = {}
        self._busy: anyio.Event | None = None
        self._coming = 0

    def __repr__(self) -> str:
        parts = (f"{url}: {slots.in_use}/{slots.limit}+{len(slots.waiters)}" for url, slots in self._slots.items())
        return f"<ConcurrencyLimiter {', '.join(parts) or 'unused'}>"

    async def acquire(self, endpoint: str, *, deadline: float) -> Slot:
        """Wait for a slot and return it. deadline: absolute, on the anyio clock.

        Raises LlmUnavailable if no slot was free by then.
        """
        slots = self._slots_of(endpoint)
        await anyio.lowlevel.checkpoint_if_cancelled()
        if slots.in_use < slots.limit:  # then no request waits: a free slot goes to a waiting request at once
            slots.in_use += 1
        else:
            await self._wait(endpoint, slots, deadline)
        self._notify_busy()
        return Slot(self, endpoint)

    @asynccontextmanager
    async def hold(self, endpoint: str, *, deadline: float) -> AsyncIterator[Slot]:
        """Hold a slot while the block runs; see `acquire`."""
        slot = await self.acquire(endpoint, deadline=deadline)
        try:
            yield slot
        finally:
            slot.release()

    def set_limit(self, endpoint: str, limit: int) -> None:
        """Change the number of slots. If more are held, no request is interrupted and none starts until enough end."""
        slots = self._slots_of(endpoint)
        slots.limit = max(1, limit)
        slots.grant()

    def statistics(self, endpoint: str) -> SlotStatistics:
        slots = self._slots_of(endpoint)
        return SlotStatistics(slots.limit, slots.in_use, len(slots.waiters))

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count as busy before a slot is asked for, so that the engine's load is known by then."""
        self._coming += 1
        self._notify_busy()
        try:
            yield
        finally:
            self._coming -= 1

    @property
    def is_busy(self) -> bool:
        return bool(self._coming) or any(slots.in_use or slots.waiters for slots in self._slots.values())

    async def wait_busy(self) -> None:
        """Return as soon as a slot is held or waited for."""
        while not self.is_busy:
            if self._busy is None:
                self._busy = anyio.Event()
            await self._busy.wait()

    async def _wait(self, endpoint: str, slots: _EndpointSlots, deadline: float) -> None:
        if len(slots.waiters) >= MAX_QUEUE:
            raise LlmUnavailable(f"{endpoint}: {MAX_QUEUE} requests already wait for a slot", endpoint=endpoint)
        waiter = _Waiter()
        slots.waiters.append(waiter)
        try:
            with anyio.fail_at(deadline):
                await waiter.granted.wait()
        except BaseException as exc:
            # A slot was granted in the moment of the timeout or cancellation: pass it on.
            if waiter.granted.is_set():
                self._give_back(endpoint)
            else:
                slots.waiters.remove(waiter)
            if isinstance(exc, TimeoutError):
                raise LlmUnavailable(_timeout_text(endpoint, slots), endpoint=endpoint) from None
            raise

    def _give_back(self, endpoint: str) -> None:
        slots = self._slots[endpoint]
        slots.in_use -= 1
        slots.grant()

    def _notify_busy(self) -> None:
        if self._busy is not None:
            self._busy.set()
            self._busy = None

    def _slots_of(self, endpoint: str) -> _EndpointSlots:
        slots = self._slots.get(endpoint)
        if slots is None:
            slots = self._slots[endpoint] = _EndpointSlots(self._first_limit)
        return slots


def _timeout_text(endpoint: str, slots: _EndpointSlots) -> str:
    counts = f"{slots.in_use} of {slots.limit} in use, {len(slots.waiters)} wait"
    return f"{endpoint}: no slot became free in time ({counts})"


# --- The engine's own queue -------------------------------------------------------------------------------------------
# Reads the engine's queue from the Prometheus text at `/metrics`, at an interval.

# A slower report is out of date. A larger page is not an engine's.
SCRAPE_TIMEOUT_S = 2.0
MAX_METRICS_BYTES = 8 << 20
# An endpoint without metrics is asked again after this long: a proxy may have a new server behind it.
NO_METRICS_RETRY_S = 60.0

# The engines' names: vLLM (also the older one of usage), SGLang, llama.cpp.
WAITING = frozenset({"vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred"})
RUNNING = frozenset({"vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"})
USAGE = frozenset(
    {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage", "llamacpp:kv_cache_usage_ratio"}
)
PREEMPTIONS = frozenset({"vllm:num_preemptions_total", "sglang:num_retracted_requests_total"})
# SGLang counts tokens. vLLM reports its number of blocks and their size in the labels of a metric.
CAPACITY = frozenset({"sglang:max_total_num_tokens"})
CACHE_CONFIG = "vllm:cache_config_info"
_METRIC_NAMES = "|".join(sorted({*WAITING, *RUNNING, *USAGE, *PREEMPTIONS, *CAPACITY, CACHE_CONFIG}))
_METRIC_LINE = re.compile(
    rf"^({_METRIC_NAMES})(\{{[^\n]*\}})?[ \t]+(\S+)(?:[ \t]+\S+)?[ \t\r]*$",
    re.MULTILINE,
)
_BLOCKS = re.compile(r'[{,]num_gpu_blocks="(\d{1,12})"')
_BLOCK_SIZE = re.compile(r'[{,]block_size="(\d{1,9})"')


def read_metrics(text: str) -> EngineLoad | None:
    """The queue in a page of metrics, summed over ranks; None if the page reports no queue."""
    waiting: list[float] = []
    running: list[float] = []
    usage = [0.0]
    preemptions = capacity = 0.0
    for name, labels, written in _METRIC_LINE.findall(text):
        value = _number(written)
        if name == CACHE_CONFIG:
            capacity += _tokens_of_blocks(labels)
        elif name in CAPACITY:
            capacity += value
        elif name in PREEMPTIONS:
            preemptions += value
        else:
            (waiting if name in WAITING else running if name in RUNNING else usage).append(value)
    if not waiting:
        return None
    return EngineLoad(
        int(sum(waiting)), int(sum(running)), min(1.0, max(usage)), int(capacity) or None, int(preemptions)
    )


def _tokens_of_blocks(labels: str) -> int:
    """The tokens that vLLM's blocks hold. One block is never used: it stands for "no block"."""
    blocks, size = _BLOCKS.search(labels), _BLOCK_SIZE.search(labels)
    return (int(blocks[1]) - 1) * int(size[1]) if blocks and size and int(blocks[1]) else 0


def _number(written: str) -> float:
    try:
        value = float(written)
    except ValueError:
        return 0.0
    return value if 0 <= value < 1e9 else 0.0  # NaN compares false


class LoadScraper:
    """Asks one endpoint for its load every `interval` seconds, while any endpoint has requests."""

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
        """Run until cancelled. Never raises.

        An endpoint without metrics updates the load with None. An endpoint that does not answer causes no update.
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
