"""The states of a session and of a slot, as two tables: no I/O, no clock.

A session exists once its handshake is done. It ends by being closed or by dying. A slot starts sessions on demand,
waits between deaths (backoff), and opens its circuit when there were too many deaths.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, TypeVar, cast


class SessionState(Enum):
    READY = auto()
    CLOSED = auto()
    FAILED = auto()


class SessionEvent(Enum):
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
    (_S.READY, _SE.CLOSE): _S.CLOSED,
    (_S.READY, _SE.DEATH): _S.FAILED,
}

_L, _LE = SlotState, SlotEvent
SLOT_TRANSITIONS: dict[tuple[SlotState, SlotEvent], SlotState] = {
    (_L.IDLE, _LE.START): _L.STARTING,
    (_L.STARTING, _LE.STARTED): _L.LIVE,
    (_L.STARTING, _LE.DIED): _L.BACKOFF,
    (_L.STARTING, _LE.CIRCUIT_OPENED): _L.CIRCUIT_OPEN,
    (_L.STARTING, _LE.STOPPED): _L.IDLE,
    (_L.LIVE, _LE.DIED): _L.BACKOFF,
    (_L.LIVE, _LE.CIRCUIT_OPENED): _L.CIRCUIT_OPEN,
    (_L.LIVE, _LE.STOPPED): _L.IDLE,
    (_L.BACKOFF, _LE.START): _L.STARTING,
    # After the cool-down one more start is tried; it either lives or gives up again.
    (_L.CIRCUIT_OPEN, _LE.START): _L.STARTING,
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
