"""One conversation's hints. Signals change its state at once. One worker sends the requests, one at a time.

`take` never waits: it only plans. When the conversation goes on, it cancels a prefetch that still runs. The prefetch
is aborted because the blocks that it finished stay in the cache and the real request computes the rest. If both ran,
both would compute the same tokens, and other requests would wait longer. (Measured on vLLM: no difference for the turn
itself.)
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from uuid import uuid4

import anyio

from toolhub_agent.kv_hints.client import HintClient, HintContext, HintEndpoint
from toolhub_agent.kv_hints.engines import PREFETCH_ID_PREFIX, Command
from toolhub_agent.kv_hints.estimates import ToolDurations
from toolhub_agent.kv_hints.policy import (
    CACHED_RESUMES,
    MIN_NEW_TOKENS,
    PrefetchPlan,
    SkipReason,
    is_cached,
    plan_prefetch,
    reason_to_skip,
)
from toolhub_agent.kv_hints.signals import (
    AboutToResume,
    HistoryRewritten,
    Prompt,
    Resumed,
    SessionFinal,
    Signal,
    ToolResultReady,
    ToolWaitStarted,
    TurnFinished,
)
from toolhub_agent.types import Message, Usage

# --- A tool wait ------------------------------------------------------------------------------------------------------
# One tool wait: which tools still run, what was prefetched, when to act next. Times are on the anyio clock.


@dataclass(eq=False)
class ToolWait:
    """One tool wait. started: absolute. reusable: tokens of the last prompt, which the cache should still have."""

    started: float
    tools: list[tuple[str, str]]
    reusable: int
    prefetches: int = 0
    new_at_prefetch: int = 0
    due: float | None = None
    due_to_prefetch: bool = False
    reason: SkipReason | None = None
    """Why no prefetch was sent so far."""
    is_closed: bool = False
    """No prefetch will be sent any more."""
    is_compared: bool = False
    """The A/B gate counts its next turn."""
    is_tainted: bool = False
    """The prompt was rewritten meanwhile, so its next turn says nothing about evictions."""
    prefetch_tokens: int | None = None
    """Tokens of the prompt of the last prefetch that ended in time."""

    def began(self, tools: tuple[tuple[str, str], ...]) -> None:
        """Replace the running tools, after the same turn made more calls."""
        self.tools = list(tools)

    def ended(self, tool: tuple[str, str]) -> None:
        if tool in self.tools:
            self.tools.remove(tool)

    def plan(self, now: float, durations: ToolDurations, *, needed: float, new_tokens: int, most: int) -> None:
        """Set `due`. needed: seconds of a prefetch and its lead time. new_tokens: of results after the last prompt."""
        if self.is_closed or not self.tools or self.prefetches >= most:
            self.due = None
            return
        is_prefetched = self.prefetches > 0 and new_tokens - self.new_at_prefetch < MIN_NEW_TOKENS
        elapsed = now - self.started
        self._set(plan_prefetch(elapsed, durations.forecast(self.tools), needed, is_prefetched=is_prefetched))

    def skip(self, reason: SkipReason, *, for_good: bool = False) -> None:
        """Do not do what was due. Without `for_good`, new results or late tools may change that."""
        self.reason, self.due = reason, None
        self.is_closed = self.is_closed or for_good

    def why_none(self) -> SkipReason | None:
        """Return, at the end of the wait, why nothing was prefetched; None if something was."""
        return None if self.prefetches else self.reason or SkipReason.NO_PROMPT

    def _set(self, found: PrefetchPlan) -> None:
        self.due, self.due_to_prefetch = self.started + found.at, found.prefetch
        if not self.prefetches:
            self.reason = SkipReason.RESUMED_FIRST if found.prefetch else SkipReason.SHORT_WAIT


# --- The session ------------------------------------------------------------------------------------------------------

logger = logging.getLogger("toolhub.hints")

# A conversation without a signal for this long is dropped. A tool may take an hour.
IDLE_SESSION_S = 7200.0
# How long to wait before a busy endpoint's load is checked again.
BUSY_PAUSE_S = 0.5
_BYTES_PER_TOKEN = 4

HintJob = Callable[[], Awaitable[None]]


class HintSession:
    """Takes the signals of one session. `run` is its worker."""

    def __init__(self, name: str, context: HintContext) -> None:
        self.name = name
        self._context = context
        self._counters = context.counters
        self._client = HintClient(name, context)
        self._jobs: deque[HintJob] = deque()
        self._signalled = anyio.Event()
        self._is_over = False
        self._endpoint: HintEndpoint | None = None
        self._prompt: Prompt | None = None
        self._turns = 0
        self._reusable = self._prefix = self._new = self._last_found = 0
        self._recent: deque[bool] = deque(maxlen=CACHED_RESUMES)
        self._wait: ToolWait | None = None
        self._resuming: ToolWait | None = None
        self._prefetching: anyio.CancelScope | None = None
        self._pinned: Command | None = None
        self._unpin_at: float | None = None

    def __repr__(self) -> str:
        state = "over" if self._is_over else "waiting for tools" if self._wait else "generating"
        return f"<HintSession {self.name}: {state}, {self._turns} turns>"

    @property
    def prefix_tokens(self) -> int:
        """Tokens of the next prompt's known beginning."""
        return self._prefix

    def take(self, signal: Signal) -> None:
        """Update the plan; never waits."""
        match signal:
            case TurnFinished():
                self._finish_turn(signal)
            case ToolWaitStarted():
                self._start_wait(signal)
            case ToolResultReady():
                self._add_result(signal)
            case AboutToResume():
                self._end_wait()
            case Resumed():
                self._resume(signal)
            case HistoryRewritten():
                self._rewrite(signal)
            case SessionFinal():
                self._end_wait()
                self._context.program_lengths.append(self._turns)
                self._jobs.append(self._release)
                self.close()
        self._signalled.set()

    def close(self) -> None:
        """Release what model servers keep for us, then let the worker end."""
        self._end_wait()
        self._jobs.append(self._unpin)
        self._is_over = True
        self._signalled.set()

    async def run(self) -> None:
        """Work until the conversation is over or dropped."""
        while True:
            if self._jobs:
                await self._guarded(self._jobs.popleft())
            elif self._is_over:
                return
            elif (due := self._due()) is not None and due <= anyio.current_time():
                await self._guarded(self._on_time)
            elif not await self._wait_for_signal(due):
                self.close()

    async def _wait_for_signal(self, due: float | None) -> bool:
        """Wait for a signal until `due`. Return False if there was none for too long."""
        self._signalled = anyio.Event()
        patience = IDLE_SESSION_S if due is None else due - anyio.current_time()
        with anyio.move_on_after(patience):
            await self._signalled.wait()
        return self._signalled.is_set() or due is not None

    async def _guarded(self, job: HintJob) -> None:
        """Run a job and log its failure: a failed hint must not stop the worker."""
        try:
            await job()
        except Exception as exc:
            self._counters.hints_failed += 1
            logger.debug("a hint failed: %s", type(exc).__name__)

    # ---- signals

    def _finish_turn(self, signal: TurnFinished) -> None:
        self._turns += 1
        self._end_wait()
        self._prompt, self._new = signal.prompt, 0
        self._reusable = signal.usage.prompt_tokens or _estimate(signal.prompt.messages)
        self._prefix = self._reusable + signal.usage.completion_tokens
        self._endpoint = self._context.endpoint(signal.prompt.endpoint)
        if self._endpoint is None:
            return
        cached = signal.usage.cached_tokens
        if cached is not None or self._turns == 1:
            self._endpoint.cost.observe(self._reusable, cached or 0, signal.ttft)
        if self._prefix >= self._context.settings.min_prefix_tokens and self._endpoint.needs_asking(signal.prompt):
            self._jobs.append(self._ask)

    def _start_wait(self, signal: ToolWaitStarted) -> None:
        if self._wait is not None:
            self._wait.began(signal.tools)
        else:
            self._wait = ToolWait(anyio.current_time(), list(signal.tools), self._reusable)
            if self._context.lmcache is not None:
                self._jobs.append(self._pin)
        self._plan()

    def _add_result(self, signal: ToolResultReady) -> None:
        if self._wait is None:
            return
        self._wait.ended((signal.server, signal.tool))
        if signal.left == 0:
            self._wait.tools.clear()
        if signal.prompt is not None and self._prompt is not None:
            added = signal.prompt.messages[len(self._prompt.messages) :]
            self._new += _estimate(added)
            self._prompt = signal.prompt
        self._plan()

    def _end_wait(self) -> None:
        self._stop_prefetch()
        if self._wait is None:
            return
        if (reason := self._wait.why_none()) is not None:
            self._counters.skipped[reason] += 1
        self._resuming, self._wait = self._wait, None

    def _resume(self, signal: Resumed) -> None:
        self._end_wait()
        wait, self._resuming = self._resuming, None
        if self._pinned is not None:
            self._jobs.append(self._unpin)
        if wait is None or wait.is_tainted or self._endpoint is None:
            return
        usage = signal.usage
        if wait.is_compared:
            self._endpoint.gate.resumed(
                prefetched=wait.prefetches > 0,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                ttft=signal.ttft,
            )
        if usage.cached_tokens is None:
            return
        if wait.prefetches == 0:
            self._saw(usage, wait.reusable)
            if not is_cached(usage.cached_tokens, wait.reusable):
                expected = self._endpoint.cost.seconds(usage.prompt_tokens, usage.cached_tokens)
                self._context.queue_delays.append(max(0.0, signal.ttft - expected))
        elif wait.prefetch_tokens is not None and self._prompt is not None:
            self._endpoint.checks.measured(self._prompt, wait.prefetch_tokens, usage.cached_tokens)

    def _rewrite(self, signal: HistoryRewritten) -> None:
        self._stop_prefetch()
        for wait in (self._wait, self._resuming):
            if wait is not None:
                wait.is_tainted = True
        if self._prompt is not None and signal.kept_messages < len(self._prompt.messages):
            self._prompt = None
        self._recent.clear()
        self._last_found = 0
        self._plan()

    # ---- planning

    def _plan(self) -> None:
        if self._wait is None:
            return
        if self._endpoint is None or self._prompt is None:
            self._wait.skip(SkipReason.NO_PROMPT)
            return
        needed = self._endpoint.cost.seconds(self._prefix + self._new, self._last_found)
        self._wait.plan(
            anyio.current_time(),
            self._context.durations,
            needed=needed + self._context.settings.lead_time_s,
            new_tokens=self._new,
            most=self._context.settings.max_prefetches,
        )

    def _due(self) -> float | None:
        times = [at for at in (self._wait.due if self._wait else None, self._unpin_at) if at is not None]
        return min(times, default=None)

    async def _on_time(self) -> None:
        now = anyio.current_time()
        if self._unpin_at is not None and self._unpin_at <= now:
            await self._unpin()
            return
        if (wait := self._wait) is None:
            return
        # Clear it first: a failure below must not leave it due.
        wait.due = None
        if not wait.due_to_prefetch:
            self._plan()
        elif (reason := self._refusal(wait)) is None:
            await self._prefetch(wait)
            self._plan()
        elif reason is SkipReason.LOADED:
            wait.reason, wait.due = reason, now + BUSY_PAUSE_S
        else:
            wait.skip(reason, for_good=reason in (SkipReason.HOLDOUT, SkipReason.NO_GAIN))

    def _refusal(self, wait: ToolWait) -> SkipReason | None:
        """Why the prefetch that is due is not sent; None if it is."""
        endpoint, prompt, settings = self._endpoint, self._prompt, self._context.settings
        if endpoint is None or prompt is None:
            return SkipReason.NO_PROMPT
        if not self._context.may_prefetch(self.name):
            return SkipReason.PAUSED
        reason = reason_to_skip(
            prefix_tokens=self._prefix + self._new,
            min_prefix_tokens=settings.min_prefix_tokens,
            new_tokens=self._new,
            recent=self._recent,
            load=self._context.load_of(endpoint.url),
            max_load=settings.max_load,
        )
        reason = reason or endpoint.refusal(prompt)
        if reason is not None or wait.prefetches:
            return reason
        wait.is_compared = True
        if endpoint.gate.allows_prefetch():
            return None
        return SkipReason.NO_GAIN if endpoint.gate.is_off else SkipReason.HOLDOUT

    def _saw(self, usage: Usage, reusable: int) -> None:
        """Learn what a request without a prefetch found in the cache."""
        if usage.cached_tokens is not None:
            self._last_found = usage.cached_tokens
            self._recent.append(is_cached(usage.cached_tokens, reusable))

    # ---- requests, all made by the worker

    async def _ask(self) -> None:
        if self._endpoint is not None and self._prompt is not None and self._endpoint.needs_asking(self._prompt):
            await self._client.ask(self._endpoint, self._prompt)

    async def _prefetch(self, wait: ToolWait) -> None:
        """Send one prefetch. It ends with the tool wait at the latest."""
        endpoint, prompt = self._endpoint, self._prompt
        assert endpoint is not None and endpoint.adapter is not None and prompt is not None
        request_id = f"{PREFETCH_ID_PREFIX}{uuid4().hex}"
        wait.prefetches += 1
        wait.new_at_prefetch = self._new
        self._counters.prefetches_sent += 1
        with anyio.CancelScope() as scope:
            self._prefetching = scope
            try:
                self._note_prefetch(wait, await self._client.prefetch(endpoint, endpoint.adapter, prompt, request_id))
            except Exception as exc:
                self._counters.prefetches_failed += 1
                logger.debug("a prefetch failed: %s", type(exc).__name__)
            finally:
                self._prefetching = None
        if scope.cancelled_caught:
            self._counters.prefetches_aborted += 1
            await self._client.abort(endpoint, endpoint.adapter, request_id)

    def _note_prefetch(self, wait: ToolWait, usage: Usage | None) -> None:
        if usage is None:
            return
        self._counters.prefetched_tokens += usage.prompt_tokens - (usage.cached_tokens or 0)
        wait.prefetch_tokens = usage.prompt_tokens
        self._saw(usage, wait.reusable)

    async def _release(self) -> None:
        if self._endpoint is not None and await self._client.release(self._endpoint, self._prompt):
            self._counters.releases += 1

    async def _pin(self) -> None:
        """Have LMCache keep the prefix while the tools run, for Continuum's TTL at most."""
        endpoint, prompt, wait = self._endpoint, self._prompt, self._wait
        if endpoint is None or endpoint.adapter is None or prompt is None or wait is None:
            return
        slowest = max(wait.tools, key=lambda tool: self._context.durations.forecast([tool]).p50, default=None)
        ttl = self._context.retention(endpoint, self._prefix, slowest)
        if ttl <= 0 or self._prefix < self._context.settings.min_prefix_tokens:
            return
        await self._unpin()
        self._pinned = await self._client.pin(endpoint, endpoint.adapter, prompt)
        if self._pinned is not None:
            self._counters.pins += 1
            self._unpin_at = anyio.current_time() + ttl

    async def _unpin(self) -> None:
        pinned, self._pinned, self._unpin_at = self._pinned, None, None
        if pinned is not None:
            await self._client.unpin(pinned)
            self._counters.releases += 1

    def _stop_prefetch(self) -> None:
        if self._prefetching is not None:
            self._prefetching.cancel()


def _estimate(messages: Sequence[Message]) -> int:
    """A rough number of tokens."""
    return sum(len(json.dumps(message, default=str)) for message in messages) // _BYTES_PER_TOKEN
