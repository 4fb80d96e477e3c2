"""A model of an inference engine with a paged KV cache, in simulated time: what many agents cost it.

Like vLLM and SGLang it forms a step of every sequence that decodes and of chunks of prompts within a token budget,
reuses what its cache has of a prompt in whole blocks, evicts the least recently used first, the end of a
conversation before its beginning, and preempts the latest sequence when no block is left. Steps that only decode are
taken many at once, so a task of 300 turns costs some milliseconds.

Simplified: what two conversations have in common is cached for each, but for a beginning that all of them share, which
is never evicted; a prompt's blocks are taken when it is admitted; what a rewritten prompt no longer contains is free at
once; requests are served in the order they come.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields

from benchmarks.model.cache import BLOCK, BlockCache, blocks_of
from benchmarks.model.costs import EngineCosts


class Clock:
    """The simulated clock and its events in order of time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, time: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(time, self.now), next(self._numbers), then))

    def run(self) -> None:
        """Run until no event is left."""
        while self._events:
            self.now, _, then = heapq.heappop(self._events)
            then()


@dataclass(slots=True, eq=False)
class EngineRequest:
    """A request of a conversation. ahead: it computes a prompt before the answer is wanted. Times are the clock's.

    reusable: tokens the prompt has in common with the conversation's last request and its answer.
    """

    conversation: str
    prompt: int
    reusable: int
    decode: int
    done: Callable[[EngineRequest], None] | None
    pin_s: float
    ahead: bool
    submitted: float
    admitted: float = math.nan
    first: float = math.nan
    finished: float = math.nan
    cached: int = 0
    """Prompt tokens found in the cache when it was first admitted."""
    computed: int = 0
    written: int = 0
    blocks: int = 0
    target: int = 0
    """Tokens to compute before the next one is written."""
    is_dropped: bool = False

    @property
    def is_decoding(self) -> bool:
        return self.computed >= self.target


@dataclass(slots=True)
class Statistics:
    """prefilled: prompt tokens computed, again after preemptions too. cached: prompt tokens taken from the cache."""

    requests: int = 0
    finished: int = 0
    warmed: int = 0
    dropped: int = 0
    prefilled: int = 0
    cached: int = 0
    decoded: int = 0
    preempted: int = 0
    steps: int = 0
    busy_s: float = 0.0

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(slots=True)
class _Span:
    """Steps that are computed now. chunks: prompt tokens in a step of prefill; if empty, all `steps` only decode."""

    began: float
    steps: int
    decoding: list[EngineRequest]
    chunks: list[tuple[EngineRequest, int]] = field(default_factory=list)


class Engine:
    """One engine with its cache. Raises ValueError for a request that could never fit or that overlaps another."""

    def __init__(
        self,
        clock: Clock,
        costs: EngineCosts,
        *,
        blocks: int,
        block: int = BLOCK,
        shared: int = 0,
        max_sequences: int = 64,
        budget: int = 8192,
    ) -> None:
        """block: tokens of one. shared: tokens that every prompt begins with; the first prompt computes them."""
        self.clock = clock
        self.costs = costs
        self.cache = BlockCache(blocks)
        self.statistics = Statistics()
        self._block = block
        self._shared_blocks = shared // block
        self._has_shared = False
        self._max_sequences = max_sequences
        self._budget = budget
        self._waiting: deque[EngineRequest] = deque()
        self._running: list[EngineRequest] = []
        self._live: dict[str, EngineRequest] = {}
        self._ahead: dict[str, int] = {}
        self._span: _Span | None = None

    def __repr__(self) -> str:
        return f"<Engine {len(self._running)} running, {len(self._waiting)} waiting, {self.cache!r}>"

    def request(
        self,
        conversation: str,
        prompt: int,
        *,
        reusable: int = 0,
        decode: int = 1,
        done: Callable[[EngineRequest], None] | None = None,
        pin_s: float = 0.0,
    ) -> EngineRequest:
        """Begin a turn. Its last token is an event that calls `done`. A prefill-ahead that still runs is dropped.

        `reusable` does not count after a prefill-ahead, which computed a beginning of this prompt.
        """
        self._drop_ahead(conversation)
        return self._submit(EngineRequest(conversation, prompt, reusable, decode, done, pin_s, False, self.clock.now))

    def warm(self, conversation: str, prompt: int, *, reusable: int = 0, pin_s: float = 0.0) -> EngineRequest:
        """Compute a beginning of the conversation's next prompt, as a request for one token would."""
        return self._submit(EngineRequest(conversation, prompt, reusable, 1, None, pin_s, True, self.clock.now))

    def pin(self, conversation: str, ttl: float) -> None:
        self.cache.pin(conversation, self.clock.now + ttl)

    def release(self, conversation: str) -> None:
        """Forget the conversation. Drop a prefill-ahead that is still at work."""
        self._drop_ahead(conversation)
        self._ahead.pop(conversation, None)
        self.cache.release(conversation)

    # --- requests come ------------------------------------------------------------------------------------------------

    def _submit(self, request: EngineRequest) -> EngineRequest:
        if request.conversation in self._live:
            raise ValueError(f"{request.conversation} has a request under way")
        needed = blocks_of(request.prompt + request.decode, self._block)
        if needed > self.cache.total or request.prompt <= self._shared_blocks * self._block or request.decode < 1:
            raise ValueError(f"{request.prompt} and {request.decode} tokens do not fit {self.cache!r}")
        self.statistics.requests += 1
        self._live[request.conversation] = request
        self.clock.at(self.clock.now + self.costs.arrival_s, lambda: self._arrive(request))
        return request

    def _arrive(self, request: EngineRequest) -> None:
        if request.is_dropped:
            return
        self._waiting.append(request)
        if self._span is None:
            self._begin()
        elif not self._span.chunks and len(self._running) < self._max_sequences:
            self._shorten(self._span)

    def _drop_ahead(self, conversation: str) -> None:
        request = self._live.get(conversation)
        if request is None or not request.ahead:
            return
        del self._live[conversation]
        self.statistics.dropped += 1
        request.is_dropped = True
        if request in self._waiting:
            self._waiting.remove(request)

    def _shorten(self, span: _Span) -> None:
        """End a row of decode steps after the step that is being computed."""
        passed = self.clock.now - span.began
        attended, count = sum(each.computed for each in span.decoding), len(span.decoding)
        low, high = 1, span.steps
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.costs.decode_s(middle, count, attended) >= passed else (middle + 1, high)
        if low < span.steps:
            self._start(_Span(span.began, low, span.decoding))

    # --- steps --------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Plan the next steps from what is running and waiting, or rest."""
        for request in [each for each in self._running if each.is_dropped]:
            self._leave(request)
        may_admit = self._make_room()
        decoding = [each for each in self._running if each.is_decoding]
        left = self._budget - len(decoding)
        chunks: list[tuple[EngineRequest, int]] = []
        for request in self._running:
            if not request.is_decoding and left > 0:
                chunks.append((request, min(left, request.target - request.computed)))
                left -= chunks[-1][1]
        while may_admit and left > 0 and self._admit():
            request = self._running[-1]
            chunks.append((request, min(left, request.target - request.computed)))
            left -= chunks[-1][1]
        self._span = None
        if chunks:
            self._start(_Span(self.clock.now, 1, decoding, chunks))
        elif decoding:
            self._start(_Span(self.clock.now, self._steps(decoding), decoding))

    def _start(self, span: _Span) -> None:
        self._span = span
        attended = sum(each.computed for each in span.decoding)
        seconds = self.costs.decode_s(span.steps, len(span.decoding), attended)
        seconds += sum(self.costs.chunk_s(each.computed, tokens) for each, tokens in span.chunks)
        self.clock.at(span.began + seconds, lambda: self._end(span, seconds))

    def _end(self, span: _Span, seconds: float) -> None:
        if span is not self._span:  # it was shortened
            return
        self.statistics.steps += span.steps
        self.statistics.busy_s += seconds
        for request, tokens in span.chunks:
            request.computed += tokens
            self.statistics.prefilled += tokens
            if request.is_decoding:
                self._wrote(request, 1)
        for request in span.decoding:
            self._grow(request, span.steps)
            request.computed += span.steps
            self._wrote(request, span.steps)
        self._begin()

    def _wrote(self, request: EngineRequest, tokens: int) -> None:
        request.written += tokens
        request.target = request.computed
        self.statistics.decoded += tokens
        if math.isnan(request.first):
            request.first = self.clock.now
        if request.written == request.decode and not request.is_dropped:
            self._finish(request)

    def _finish(self, request: EngineRequest) -> None:
        request.finished = self.clock.now
        self.statistics.finished += 1
        self.statistics.warmed += request.ahead
        del self._live[request.conversation]
        self._leave(request)
        if request.pin_s:
            self.pin(request.conversation, request.pin_s)
        if request.done is not None:
            done = request.done
            self.clock.at(self.clock.now, lambda: done(request))

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _admit(self) -> bool:
        """Admit the first waiting request if there is a seat and there are blocks for its whole prompt."""
        if not self._waiting or len(self._running) >= self._max_sequences:
            return False
        request, now = self._waiting[0], self.clock.now
        request.target = request.prompt + request.written
        shared = self._shared_blocks
        needed = blocks_of(request.target, self._block) - shared
        while needed + shared * (not self._has_shared) > self.cache.spare(now, request.conversation):
            # While nothing runs, no block becomes free.
            if self._running or not self.cache.yield_pin():
                return False
        self._waiting.popleft()
        known = self._ahead.pop(request.conversation, request.reusable)
        if request.ahead:
            self._ahead[request.conversation] = request.prompt
        # The last token is always computed: its output is the next one.
        most = max(min(known, request.target - 1) // self._block - shared, 0)
        found = self.cache.claim(request.conversation, most)
        self.cache.take(needed - found)
        request.blocks, request.computed = needed, (shared + found) * self._block
        if not self._has_shared:
            self.cache.take(shared)
            self._has_shared, request.computed = True, 0
        self.statistics.cached += request.computed
        if math.isnan(request.admitted):
            request.admitted, request.cached = now, request.computed
        self._running.append(request)
        return True

    def _make_room(self) -> bool:
        """Take a block for the next token of every sequence. False: the latest sequence had to leave; admit none."""
        has_room = True
        while sum(self._missing(each, 1) for each in self._running if each.is_decoding) > self.cache.spare(
            self.clock.now
        ):
            if self.cache.yield_pin():
                continue
            has_room = False
            request = self._running[-1]
            self._leave(request)
            request.reusable = request.computed
            self._waiting.appendleft(request)
            self.statistics.preempted += 1
        # Taken now; otherwise an admitted sequence would get them.
        for request in self._running:
            if request.is_decoding:
                self._grow(request, 1)
        return has_room

    def _steps(self, decoding: list[EngineRequest]) -> int:
        """How many steps can be taken before a sequence ends or the blocks do."""
        spare, low, high = self.cache.spare(self.clock.now), 1, min(each.decode - each.written for each in decoding)
        while low < high:
            middle = (low + high + 1) // 2
            fits = sum(self._missing(each, middle) for each in decoding) <= spare
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _grow(self, request: EngineRequest, tokens: int) -> None:
        more = self._missing(request, tokens)
        self.cache.take(more)
        request.blocks += more

    def _leave(self, request: EngineRequest) -> None:
        """End a request. Its full blocks stay until another sequence needs them."""
        self._running.remove(request)
        worth = max(request.computed // self._block - self._shared_blocks, 0)
        self.cache.give(request.conversation, request.blocks, worth)
        request.blocks = 0

    def _missing(self, request: EngineRequest, tokens: int) -> int:
        own = blocks_of(request.computed + tokens, self._block) - self._shared_blocks
        return max(own - request.blocks, 0)
