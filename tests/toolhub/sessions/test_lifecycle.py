"""The two state machines: every pair of a state and an event is either in these tables or illegal."""

from __future__ import annotations

import itertools

import pytest

from toolhub.sessions.lifecycle import (
    SESSION_TRANSITIONS,
    SLOT_TRANSITIONS,
    IllegalTransition,
    SessionEvent,
    SessionState,
    SlotEvent,
    SlotState,
    advance,
)

pytestmark = pytest.mark.quick

SESSION = {
    "READY": {"CLOSE": "CLOSED", "DEATH": "FAILED"},
    "CLOSED": {},
    "FAILED": {},
}
SLOT = {
    "IDLE": {"START": "STARTING"},
    "STARTING": {"STARTED": "LIVE", "DIED": "BACKOFF", "CIRCUIT_OPENED": "CIRCUIT_OPEN", "STOPPED": "IDLE"},
    "LIVE": {"DIED": "BACKOFF", "CIRCUIT_OPENED": "CIRCUIT_OPEN", "STOPPED": "IDLE"},
    "BACKOFF": {"START": "STARTING"},
    "CIRCUIT_OPEN": {"START": "STARTING"},
}


def pairs(table, states, events, *, legal):
    every = itertools.product(states, events)
    return [(state, event) for state, event in every if (event.name in table[state.name]) is legal]


@pytest.mark.parametrize(("state", "event"), pairs(SESSION, SessionState, SessionEvent, legal=True))
def test_a_session_moves_as_the_table_says(state, event):
    assert advance(state, event) is SessionState[SESSION[state.name][event.name]]


@pytest.mark.parametrize(("state", "event"), pairs(SLOT, SlotState, SlotEvent, legal=True))
def test_a_slot_moves_as_the_table_says(state, event):
    assert advance(state, event) is SlotState[SLOT[state.name][event.name]]


@pytest.mark.parametrize(
    ("state", "event"),
    pairs(SESSION, SessionState, SessionEvent, legal=False) + pairs(SLOT, SlotState, SlotEvent, legal=False),
)
def test_every_other_move_is_illegal_and_named(state, event):
    with pytest.raises(IllegalTransition, match=rf"{type(state).__name__}\.{state.name} .* {event.name}$"):
        advance(state, event)


@pytest.mark.parametrize(
    ("state", "event"),
    [*itertools.product(SessionState, SlotEvent), *itertools.product(SlotState, SessionEvent)],
)
def test_an_event_of_the_other_machine_is_illegal(state, event):
    with pytest.raises(IllegalTransition):
        advance(state, event)


@pytest.mark.parametrize(
    ("table", "states", "first"),
    [(SESSION_TRANSITIONS, SessionState, SessionState.READY), (SLOT_TRANSITIONS, SlotState, SlotState.IDLE)],
)
def test_every_state_is_reached_and_every_event_is_used(table, states, first):
    assert {first, *table.values()} == set(states)
    assert {event for _, event in table} == set(SessionEvent if states is SessionState else SlotEvent)


def test_an_ended_session_never_moves_again():
    assert not [state for state, _ in SESSION_TRANSITIONS if state in (SessionState.CLOSED, SessionState.FAILED)]


@pytest.mark.parametrize("state", [SlotState.STARTING, SlotState.LIVE])
@pytest.mark.parametrize("event", [SlotEvent.STOPPED, SlotEvent.DIED, SlotEvent.CIRCUIT_OPENED])
def test_a_slot_can_be_started_again_however_its_session_ended(state, event):
    assert advance(advance(state, event), SlotEvent.START) is SlotState.STARTING
