"""What pins do reaches Prometheus and the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from toolhub_agent.vllm_plugin.metrics import LOG_EVERY_S, PinMetrics
from toolhub_agent.vllm_plugin.pins import PIN_EVENTS, PinStatistics

from tests.toolhub_agent.vllm_plugin.pool_model import Clock


def statistics(pins: int = 0, blocks: int = 0, **events: int) -> PinStatistics:
    return PinStatistics(pins, blocks, {event: events.get(event, 0) for event in PIN_EVENTS})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(clock: Clock, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> Iterator[PinMetrics]:
    with caplog.at_level(logging.INFO, logger="vllm.toolhub_pins"):
        yield PinMetrics(engine=3, clock=clock, registry=registry)


def test_numbers_now_and_counts_so_far(metrics: PinMetrics, registry: CollectorRegistry) -> None:
    metrics.publish(statistics(2, 40, held=2))
    metrics.publish(statistics(1, 30, held=5, yielded=3, expired=1))
    engine = {"engine": "3"}
    assert registry.get_sample_value("toolhub_pins", engine) == 1
    assert registry.get_sample_value("toolhub_pinned_blocks", engine) == 30
    counts = {e: registry.get_sample_value("toolhub_pin_events_total", engine | {"event": e}) for e in PIN_EVENTS}
    assert counts == dict.fromkeys(PIN_EVENTS, 0) | {"held": 5, "yielded": 3, "expired": 1}


def test_the_log_has_changes_now_and_then(metrics: PinMetrics, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    metrics.publish(statistics())
    assert caplog.messages == []
    metrics.publish(statistics(1, 10, held=1))
    clock.now += LOG_EVERY_S / 2
    metrics.publish(statistics(2, 20, held=2))
    assert caplog.messages == ["Pins: 1 of 10 blocks; so far 1 held"]
    clock.now += LOG_EVERY_S / 2
    metrics.publish(statistics(2, 20, held=2))
    assert caplog.messages[1:] == ["Pins: 2 of 20 blocks; so far 2 held"]
    clock.now += LOG_EVERY_S
    metrics.publish(statistics(2, 20, held=2))
    assert len(caplog.messages) == 2


def test_the_last_counts_are_logged(metrics: PinMetrics, caplog: pytest.LogCaptureFixture) -> None:
    metrics.publish(statistics(1, 10, held=1))
    metrics.publish(statistics(0, 0, held=1, reset=1), final=True)
    assert caplog.messages[-1] == "Pins: 0 of 0 blocks; so far 1 held, 1 reset"
