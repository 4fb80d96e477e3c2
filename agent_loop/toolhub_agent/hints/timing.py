"""When to send a prefill-ahead: pure rules. All times are seconds since the tools were started.

One warm just before the tools are expected back, not at their start: earlier ones only age in the cache. `needed` is
the warm's own time plus a margin. Tools that run longer than nine of ten did are expected to take as long again
(InferCept's estimate), so later warms are twice as far apart each time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from toolhub_agent.hints.durations import Forecast

# A share of the reusable prefix above which nothing is being evicted ...
CACHED = 0.98
# ... and what may be missing whatever its share: engines cache whole blocks, of up to some hundred tokens.
CACHED_SLACK_TOKENS = 256
# As many resumes without a loss before a session is left alone.
CACHED_RESUMES = 2
# So many tokens of tool results are worth a warm even where nothing is evicted.
WORTHWHILE_TOKENS = 512
# A moment that was planned has come although the sums of times differ by rounding; else it would be planned again.
_TICK_S = 1e-3


class Skip(Enum):
    """Why a tool wait got no prefill-ahead."""

    NO_PROMPT = "no prompt"
    ENGINE_UNKNOWN = "engine unknown"
    SHORT_PREFIX = "short prefix"
    SHORT_WAIT = "tools return sooner than a warm"
    RESUMED_FIRST = "resumed before the planned time"
    TEMPLATE = "template rewrites history"
    CACHED = "nothing is evicted"
    LOADED = "endpoint is busy"
    NO_GAIN = "no measured gain"
    CONTROL = "left out for comparison"
    BACKED_OFF = "endpoint refuses"


@dataclass(frozen=True, slots=True)
class Plan:
    """at: when. warm: send one then; otherwise only plan anew, as the tools are late by then."""

    at: float
    warm: bool


def plan(now: float, forecast: Forecast, needed: float, *, warmed: bool) -> Plan:
    """What to do next in a tool wait. warmed: all that can be warmed was."""
    end = _expected_end(now, forecast)
    if warmed and now + _TICK_S < forecast.p90:
        return Plan(forecast.p90, warm=False)
    if end - now >= needed:
        return Plan(end - needed, warm=True)
    return Plan(end, warm=False)


def _expected_end(now: float, forecast: Forecast) -> float:
    """Always later than now."""
    if now + _TICK_S < forecast.p50:
        return forecast.p50
    if now + _TICK_S < forecast.p90:
        return forecast.p90
    # A wait has always lasted a moment; from zero nothing could be doubled.
    return 2 * max(now, 0.1)


def is_cached(found: int, reusable: int) -> bool:
    """Was (nearly) all that could be reused still in the cache?"""
    return found >= CACHED * reusable or reusable - found <= CACHED_SLACK_TOKENS


def refuse(
    *,
    prefix_tokens: int,
    min_prefix_tokens: int,
    new_tokens: int,
    recent: Collection[bool],
    load: int,
    max_load: int,
) -> Skip | None:
    """Why a warm that is due should not be sent. recent: was everything cached at the latest resumes?"""
    if prefix_tokens < min_prefix_tokens:
        return Skip.SHORT_PREFIX
    nothing_evicted = sum(recent) >= CACHED_RESUMES and all(recent)
    if nothing_evicted and new_tokens < WORTHWHILE_TOKENS:
        return Skip.CACHED
    return Skip.LOADED if load > max_load else None
