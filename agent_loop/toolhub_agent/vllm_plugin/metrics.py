"""Publishes the pins' counts. The scheduler runs in a process of its own, behind vLLM's API server.

Processes share metrics through files in PROMETHEUS_MULTIPROC_DIR. prometheus_client writes them if the variable is set,
and vLLM's /metrics then shows the files of all its processes. The log has the counts in any case.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from toolhub_agent.vllm_plugin.pins import PIN_EVENTS, PinStatistics

# The interval of vLLM's own statistics line.
LOG_EVERY_S = 10.0
# A child of vLLM's logger, so it has vLLM's handlers and level.
_log = logging.getLogger("vllm.toolhub_pins")


class PinMetrics:
    """Publishes statistics when they change. engine: the number of this engine among data-parallel ones."""

    def __init__(self, *, engine: int, clock: Callable[[], float], registry: CollectorRegistry = REGISTRY) -> None:
        self._clock = clock
        self._logged = float("-inf")
        self._last = PinStatistics(0, 0, dict.fromkeys(PIN_EVENTS, 0))
        self._in_log = self._last
        name, number = ["engine"], str(engine)
        # The newest value counts: the value of a restarted engine is not added to the earlier one.
        self._pins, self._blocks = (
            Gauge(metric, text, name, registry=registry, multiprocess_mode="mostrecent").labels(number)
            for metric, text in [
                ("toolhub_pins", "Conversations whose KV blocks are kept, at the engine's last step."),
                ("toolhub_pinned_blocks", "KV blocks kept by pins, at the engine's last step."),
            ]
        )
        events = Counter("toolhub_pin_events", "What happened to pins.", [*name, "event"], registry=registry)
        self._events = {event: events.labels(number, event) for event in PIN_EVENTS}

    def publish(self, now: PinStatistics, *, final: bool = False) -> None:
        """Publish changed counts. Cheap without changes, because every step calls it. final: log the rest."""
        if now != self._last:
            self._pins.set(now.pins)
            self._blocks.set(now.blocks)
            for event, count in now.events.items():
                self._events[event].inc(count - self._last.events[event])
            self._last = now
        if now != self._in_log and (final or self._clock() - self._logged >= LOG_EVERY_S):
            self._logged, self._in_log = self._clock(), now
            counts = ", ".join(f"{count} {event}" for event, count in now.events.items() if count)
            _log.info("Pins: %d of %d blocks; so far %s", now.pins, now.blocks, counts)


def log_limits(*, cap_blocks: int, all_blocks: int, max_ttl: float) -> None:
    """Log at the start what pins may hold and where their metrics are."""
    where = "in /metrics" if os.environ.get("PROMETHEUS_MULTIPROC_DIR") else "here (set PROMETHEUS_MULTIPROC_DIR)"
    _log.info("Pins may hold %d of %d blocks, %g s at most; counts are %s", cap_blocks, all_blocks, max_ttl, where)
