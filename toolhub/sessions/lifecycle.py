"""The two state machines and nothing else: no I/O, no clock.

A session is one incarnation and only ever moves forward. A slot keeps sessions coming: it starts one on demand,
waits between deaths, and gives up when there were too many.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, TypeVar, cast


class SessionState(Enum):
    STARTING = auto()
    READY = auto()
    DRAINING = auto()
    CLOSED = auto()
    FAILED = auto()


class SessionEvent(Enum):
    HANDSHAKE_DONE = auto()
    DRAIN = auto()
    CLOSE = auto()
    DEATH = auto()


class SlotState(Enum):
    IDLE = auto()
    STARTING = auto()
    LIVE = auto()
    BACKOFF = auto()
    CIRCUIT_OPEN = auto()


class SlotEvent(Enum):
    START = auto()
    STARTED = auto()
    DIED = auto()
    CIRCUIT_OPENED = auto()
    STOPPED = auto()


_S, _SE = SessionState, SessionEvent
SESSION_TRANSITIONS: dict[tuple[SessionState, SessionEvent], SessionState] = {
    (_S.STARTING, _SE.HANDSHAKE_DONE): _S.READY,
    (_S.STARTING, _SE.CLOSE): _S.CLOSED,
    (_S.STARTING, _SE.DEATH): _S.FAILED,
    (_S.READY, _SE.DRAIN): _S.DRAINING,
    (_S.READY, _SE.CLOSE): _S.CLOSED,
    (_S.READY, _SE.DEATH): _S.FAILED,
    (_S.DRAINING, _SE.CLOSE): _S.CLOSED,
    (_S.DRAINING, _SE.DEATH): _S.FAILED,
}

_L, _LE = SlotState, SlotEvent
SLOT_TRANSITIONS: dict[tuple[SlotState, SlotEvent], SlotState] = {
    (_L.IDLE, _LE.START): _L.STARTING,
    (_L.IDLE, _LE.STOPPED): _L.IDLE,
    (_L.STARTING, _LE.STARTED): _L.LIVE,
    (_L.STARTING, _LE.DIED): _L.BACKOFF,
    (_L.STARTING, _LE.CIRCUIT_OPENED): _L.CIRCUIT_OPEN,
    (_L.STARTING, _LE.STOPPED): _L.IDLE,
    (_L.LIVE, _LE.DIED): _L.BACKOFF,
    (_L.LIVE, _LE.CIRCUIT_OPENED): _L.CIRCUIT_OPEN,
    (_L.LIVE, _LE.STOPPED): _L.IDLE,
    (_L.BACKOFF, _LE.START): _L.STARTING,
    (_L.BACKOFF, _LE.STOPPED): _L.IDLE,
    # After the cool-down one more start is tried; it either lives or gives up again.
    (_L.CIRCUIT_OPEN, _LE.START): _L.STARTING,
    (_L.CIRCUIT_OPEN, _LE.STOPPED): _L.IDLE,
}


class IllegalTransition(RuntimeError):
    """The table has no such move: a bug in toolhub, never the server's fault."""


_State = TypeVar("_State", SessionState, SlotState)


def advance(state: _State, event: SessionEvent | SlotEvent) -> _State:
    """Return the state after `event`.

    Raises IllegalTransition when the table has no such move.
    """
    table: Mapping[Any, Any] = SESSION_TRANSITIONS if isinstance(state, SessionState) else SLOT_TRANSITIONS
    try:
        return cast(_State, table[state, event])
    except KeyError:
        raise IllegalTransition(f"{type(state).__name__}.{state.name} has no transition on {event.name}") from None
