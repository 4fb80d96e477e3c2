"""The rules of hints, without I/O: when to prefetch, how long to keep, and whether prefetching helps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean, median

from toolhub_agent.kv_hints.estimates import WaitForecast

# --- When to prefetch -------------------------------------------------------------------------------------------------
# When to send a prefetch. All times are seconds since the tools were started.
#
# One prefetch is sent just before the tools are expected to return. An earlier one would only age in the cache.
# `needed` is the prefetch's own time plus the lead time. A tool that runs longer than its p90 is expected to take as
# long again (InferCept's estimate). So later prefetches are twice as far apart each time.

# If this share of the reusable prefix is cached, nothing is being evicted.
CACHED_SHARE = 0.98
# This many missing tokens are never an eviction: engines cache whole blocks of up to some hundred tokens.
CACHED_SLACK_TOKENS = 256
# After this many resumes without an eviction the session gets no prefetch.
CACHED_RESUMES = 2
# This many tokens of tool results are worth a prefetch even if nothing is evicted.
MIN_NEW_TOKENS = 512
# Sums of times differ by rounding. Without this tolerance a planned moment that has come would be planned again.
_TICK_S = 1e-3


class SkipReason(Enum):
    """Why a tool wait got no prefetch."""

    NO_PROMPT = "no prompt"
    ENGINE_UNKNOWN = "engine unknown"
    SHORT_PREFIX = "short prefix"
    SHORT_WAIT = "tools return sooner than a prefetch"
    RESUMED_FIRST = "resumed before the planned time"
    TEMPLATE = "template rewrites history"
    CACHED = "nothing is evicted"
    LOADED = "endpoint is busy"
    NO_GAIN = "no measured gain"
    HOLDOUT = "left out for comparison"
    BACKED_OFF = "endpoint refuses"
    PAUSED = "admission has paused the conversation"


@dataclass(frozen=True, slots=True)
class PrefetchPlan:
    """When to act next. prefetch: send a prefetch then; otherwise only plan again, because the tools are late."""

    at: float
    prefetch: bool


def plan_prefetch(now: float, forecast: WaitForecast, needed: float, *, is_prefetched: bool) -> PrefetchPlan:
    """What to do next in a tool wait. is_prefetched: everything that can be prefetched was."""
    end = _expected_end(now, forecast)
    if is_prefetched and now + _TICK_S < forecast.p90:
        return PrefetchPlan(forecast.p90, prefetch=False)
    if end - now >= needed:
        return PrefetchPlan(end - needed, prefetch=True)
    return PrefetchPlan(end, prefetch=False)


def _expected_end(now: float, forecast: WaitForecast) -> float:
    """When the tools should return; always later than now."""
    if now + _TICK_S < forecast.p50:
        return forecast.p50
    if now + _TICK_S < forecast.p90:
        return forecast.p90
    # At time zero there is nothing to double.
    return 2 * max(now, 0.1)


def is_cached(found: int, reusable: int) -> bool:
    """Was (nearly) all of the reusable prefix still in the cache?"""
    return found >= CACHED_SHARE * reusable or reusable - found <= CACHED_SLACK_TOKENS


def reason_to_skip(
    *,
    prefix_tokens: int,
    min_prefix_tokens: int,
    new_tokens: int,
    recent: Collection[bool],
    load: int,
    max_load: int,
) -> SkipReason | None:
    """Why a prefetch that is due should not be sent. recent: for the latest resumes, was everything cached?"""
    if prefix_tokens < min_prefix_tokens:
        return SkipReason.SHORT_PREFIX
    nothing_evicted = sum(recent) >= CACHED_RESUMES and all(recent)
    if nothing_evicted and new_tokens < MIN_NEW_TOKENS:
        return SkipReason.CACHED
    return SkipReason.LOADED if load > max_load else None


# --- How long to keep a prefix ----------------------------------------------------------------------------------------
# How long an engine should keep a conversation's KV cache while its tools run: Continuum's formula (arXiv 2511.02230).
#
# tau* = argmax over tau of P(duration <= tau) * (T * eta + reload) - tau: the gain if the tools return in time, minus
# the time for which the memory is held. T: mean queue wait of requests whose cache was lost. eta: 1 if all programs
# have the same number of requests, 0 if the number of requests left does not depend on the number already served.
# reload: seconds to compute or load the prefix again.

# Continuum's K: with this many records or fewer, a distribution is not trusted.
MIN_RECORDS = 100
# Used before any tool was measured: most calls of a research agent end within it.
DEFAULT_TTL_S = 30.0
# Multiplies the p90 of tool durations.
_P90_FACTOR = 1.5
# How many of the latest programs' lengths are kept. That is enough for a correlation.
_MAX_PROGRAM = 1000


def retention_ttl(own: Sequence[float], overall: Sequence[float], benefit: float, *, longest: float) -> float:
    """Seconds to keep a prefix, between 0 and `longest`. 0 means: do not keep it.

    own, overall: past durations of the tool, and of all tools. benefit: T * eta + reload, seconds.
    """
    if len(overall) <= MIN_RECORDS:
        ttl = bootstrap_ttl(benefit)
    else:
        ttl = optimal_ttl(own if len(own) > MIN_RECORDS else overall, benefit)
    return min(ttl, longest)


def p90_ttl(overall: Sequence[float], *, margin: float, longest: float) -> float:
    """Seconds to keep a prefix where keeping it is free: long enough for nearly every tool.

    This is for pins of toolhub's scheduler: it drops them before another request has to wait. The formula above weighs
    the cost of the memory, which is zero here.
    """
    if not overall:
        return min(DEFAULT_TTL_S, longest)
    ordered = sorted(overall)
    usual = ordered[min(len(ordered) * 9 // 10, len(ordered) - 1)]
    return min(usual * _P90_FACTOR + margin, longest)


def bootstrap_ttl(benefit: float) -> float:
    """The optimum for exponential durations with mean 1 s: ln(benefit), or 0 if that is negative."""
    return math.log(benefit) if benefit > 1 else 0.0


def optimal_ttl(durations: Sequence[float], benefit: float) -> float:
    """The best of 0 and every recorded duration; of two equally good ones, the shorter."""
    best, best_value = 0.0, 0.0
    for count, duration in enumerate(ordered := sorted(durations), start=1):
        value = count / len(ordered) * benefit - duration
        if value > best_value:
            best, best_value = duration, value
    return best


def request_count_correlation(lengths: Iterable[int]) -> float:
    """eta = -Corr(requests served, requests left) over programs of these lengths, at least 0."""
    points = [(k, n - k) for n in lengths for k in range(1, min(n, _MAX_PROGRAM) + 1)]
    if len(points) < 2:
        return 0.0
    mean_served = sum(k for k, _ in points) / len(points)
    mean_left = sum(left for _, left in points) / len(points)
    together = sum((k - mean_served) * (left - mean_left) for k, left in points)
    spread = sum((k - mean_served) ** 2 for k, _ in points) * sum((left - mean_left) ** 2 for _, left in points)
    return max(0.0, -together / math.sqrt(spread)) if spread > 0 else 0.0


# --- Does prefetching help? -------------------------------------------------------------------------------------------
# Compares resumed turns after a prefetch with resumed turns after none, per endpoint.
#
# At first every other tool wait gets no prefetch, until there are enough turns of both kinds. Later one wait in eight
# gets none, so that the comparison stays valid. Without a gain, prefetching is switched off. It is tried again when
# turns without a prefetch find clearly less in the cache than before. Otherwise it is tried again rarely, each time
# after twice as many waits.

# Turns of each kind that a verdict needs.
MIN_SAMPLES = 4
KEPT_RESUMES = 16
HOLDOUT_EVERY = 8
# A smaller share of the prompt is one or two blocks, or noise.
MIN_CACHED_GAIN = 0.05
# If more is cached, the turn may take up to this ratio: tool results differ in length, so times are never equal.
MAX_TTFT_RATIO = 1.1
# If the server does not report cached tokens, the time alone must show the gain. Two medians of four differ by chance.
CLEAR_TTFT_RATIO = 0.8
# Tool waits without a prefetch before it is tried again. The number doubles up to the second value.
REPROBE_WAITS, MAX_REPROBE_WAITS = 64, 1024
# If the cached share falls by this much while prefetching is off, the cache has begun to evict.
EVICTION_LOSS = 0.1


@dataclass(frozen=True, slots=True)
class GainReport:
    """Medians over resumed turns with and without a prefetch: cached share of the prompt, seconds per prompt token."""

    prefetched: int
    holdout: int
    prefetched_share: float | None
    holdout_share: float | None
    ttft_ratio: float | None
    is_off: bool


@dataclass(frozen=True, slots=True)
class _Resume:
    share: float | None
    pace: float


class PrefetchGate:
    """The comparison for one endpoint."""

    def __init__(self, *, always: bool = False) -> None:
        """always: prefetch in every wait and never switch off."""
        self._always = always
        self._prefetched: deque[_Resume] = deque(maxlen=KEPT_RESUMES)
        self._holdout: deque[_Resume] = deque(maxlen=KEPT_RESUMES)
        self._chosen = 0
        self._off = False
        self._off_waits = 0
        self._off_share: float | None = None
        self._reprobe = REPROBE_WAITS

    @property
    def is_off(self) -> bool:
        return self._off

    def allows_prefetch(self) -> bool:
        """Whether this tool wait may get a prefetch. Each call counts as one wait; False adds it to the holdout."""
        if self._always:
            return True
        if self._off:
            self._off_waits += 1
            return False
        self._chosen += 1
        if len(self._prefetched) < MIN_SAMPLES or len(self._holdout) < MIN_SAMPLES:
            # Fill the kind with too few turns. The first wait is prefetched.
            return len(self._holdout) >= MIN_SAMPLES or (len(self._prefetched) < MIN_SAMPLES and self._chosen % 2 == 1)
        return self._chosen % HOLDOUT_EVERY != 0

    def resumed(self, *, prefetched: bool, prompt_tokens: int, cached_tokens: int | None, ttft: float) -> None:
        """Count a turn after a tool wait that `allows_prefetch` decided."""
        if prompt_tokens <= 0:
            return
        share = None if cached_tokens is None else cached_tokens / prompt_tokens
        (self._prefetched if prefetched else self._holdout).append(_Resume(share, ttft / prompt_tokens))
        if not self._always:
            self._judge()

    def report(self) -> GainReport:
        return GainReport(
            len(self._prefetched),
            len(self._holdout),
            _mean_share(self._prefetched),
            _mean_share(self._holdout),
            self._ratio(),
            self._off,
        )

    def _judge(self) -> None:
        if self._off:
            if self._off_waits >= self._reprobe or self._lost():
                self._probe_again()
        elif len(self._prefetched) >= MIN_SAMPLES and len(self._holdout) >= MIN_SAMPLES and not self._helps():
            self._off, self._off_waits, self._off_share = True, 0, _mean_share(self._holdout)

    def _helps(self) -> bool:
        ratio, with_it, without = self._ratio(), _mean_share(self._prefetched), _mean_share(self._holdout)
        if ratio is None:
            return True
        if with_it is None or without is None:
            return ratio <= CLEAR_TTFT_RATIO
        return with_it - without >= MIN_CACHED_GAIN and ratio <= MAX_TTFT_RATIO

    def _lost(self) -> bool:
        now = _mean_share(list(self._holdout)[-MIN_SAMPLES:])
        return now is not None and self._off_share is not None and self._off_share - now >= EVICTION_LOSS

    def _probe_again(self) -> None:
        self._off, self._off_waits = False, 0
        self._reprobe = min(2 * self._reprobe, MAX_REPROBE_WAITS)
        self._prefetched.clear()
        recent = list(self._holdout)[-MIN_SAMPLES:]
        self._holdout.clear()
        self._holdout.extend(recent)

    def _ratio(self) -> float | None:
        if not self._prefetched or not self._holdout:
            return None
        slow = median(each.pace for each in self._holdout)
        return median(each.pace for each in self._prefetched) / slow if slow > 0 else None


def _mean_share(resumes: deque[_Resume] | list[_Resume]) -> float | None:
    shares = [each.share for each in resumes if each.share is not None]
    return fmean(shares) if shares else None
