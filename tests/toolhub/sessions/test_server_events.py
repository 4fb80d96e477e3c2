"""What is written about servers, how much of it, and which of them count as broken."""

from __future__ import annotations

import logging

import pytest
from in_memory_hub import a_spec

from toolhub.config import ServerSpec, parse_server
from toolhub.model import ServerHealth
from toolhub.sessions.events import LINES, MOST_NAMES, OTHERS, WINDOW_S, ServerEvents

pytestmark = pytest.mark.quick


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def events(clock: Clock, caplog: pytest.LogCaptureFixture) -> ServerEvents:
    caplog.set_level(logging.INFO, logger="toolhub.servers")
    return ServerEvents(clock)


def a_death(events: ServerEvents, spec: ServerSpec, task: str = "t1", reason: str = "exited with 1") -> None:
    events.died(spec, task, reason, pid=7, calls=())


def test_a_line_names_server_task_and_calls_also_for_programs(
    events: ServerEvents, caplog: pytest.LogCaptureFixture
) -> None:
    events.died(a_spec("s"), "t1", "was killed by signal 9", pid=7, calls=["t1-1", "t1-2"])
    (record,) = caplog.records
    said = "server 's' of task 't1' (pid 7, calls in flight: t1-1, t1-2) was killed by signal 9"
    assert (record.getMessage(), record.levelname, record.name) == (said, "WARNING", "toolhub.servers")
    fields = vars(record)
    assert [fields[name] for name in ("event", "server", "task", "call_ids")] == ["died", "s", "t1", "t1-1, t1-2"]


def test_a_server_that_all_tasks_share_is_said_to_be_shared(
    events: ServerEvents, caplog: pytest.LogCaptureFixture
) -> None:
    events.starting(a_spec("s"), "hub", deaths=2)
    assert caplog.messages == ["server 's' shared by all tasks is starting again after 2 deaths or failed starts"]


def test_a_storm_of_deaths_writes_a_bounded_number_of_lines_and_says_how_many_more(
    events: ServerEvents, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1000):
        a_death(events, a_spec("s"))
    assert len(caplog.messages) == LINES
    clock.now = WINDOW_S
    events.flush()
    assert caplog.messages[LINES:] == [f"server 's': {1000 - LINES} more lines were suppressed in 10 s"]
    events.flush()
    assert len(caplog.messages) == LINES + 1
    a_death(events, a_spec("s"))
    assert len(caplog.messages) == LINES + 2


def test_one_server_s_storm_hides_neither_another_s_lines_nor_its_own_of_another_level(
    events: ServerEvents, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(LINES + 1):
        events.starting(a_spec("loud"), "t1", deaths=0)
    caplog.clear()
    a_death(events, a_spec("loud"))
    a_death(events, a_spec("quiet"))
    assert len(caplog.messages) == 2


def test_secrets_and_control_characters_do_not_reach_the_log(
    events: ServerEvents, caplog: pytest.LogCaptureFixture
) -> None:
    spec = parse_server("s", {"command": "x", "env": {"API_KEY": "sk-very-secret"}}, environ={})
    events.start_failed(spec, "t1", "server 's' did not start: key sk-very-secret \x1b]0;title\x07 refused")
    assert caplog.messages == ["server 's' of task 't1' did not start: key *** ?]0;title? refused"]
    (health,) = events.broken
    assert health.last_error is not None and "sk-very" not in health.last_error


def test_a_server_is_broken_from_its_first_failed_start_to_its_next_good_one(events: ServerEvents) -> None:
    spec = a_spec("s")
    events.start_failed(spec, "t1", "no key")
    (first,) = events.broken
    events.given_up(spec, "t2", "no key at all", deaths=2)
    (second,) = events.broken
    assert (first.state, second.state, second.last_error, second.task) == ("failing", "given_up", "no key at all", "t2")
    assert first.since == second.since is not None
    events.ready(spec, "t3", pid=7, seconds=0.1)
    assert events.broken == ()
    assert events.statistics() == (ServerHealth("s", starts=0, deaths=1),)


def test_a_single_death_does_not_make_a_server_broken(events: ServerEvents) -> None:
    a_death(events, a_spec("s"))
    assert (events.broken, events.statistics()[0].deaths) == ((), 1)


def test_names_that_clients_invent_do_not_grow_the_counts_for_ever(events: ServerEvents, clock: Clock) -> None:
    for number in range(MOST_NAMES + 50):
        clock.now += WINDOW_S
        a_death(events, a_spec(f"s{number}"))
    counted = {health.server: health.deaths for health in events.statistics()}
    assert len(counted) == MOST_NAMES + 1 and counted[OTHERS] == 50
    assert len(events._windows) <= 1
