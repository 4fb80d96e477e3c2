"""Whatever a task asks in whatever order: a replay gives what the real server would have given, or a miss."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolhub.cassette.recording import Exchange, Header, Recording, history_after, key_of
from toolhub.model import Json

pytestmark = pytest.mark.quick

# (tool, argument): `write` changes the server `notes`, `read` shows its state.
calls = st.lists(st.tuples(st.sampled_from(["write", "read"]), st.sampled_from("ab")), max_size=8)


class Notes:
    """The real server."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def call(self, tool: str, argument: str) -> Json:
        if tool == "write":
            self.notes.append(argument)
            return {"count": len(self.notes)}
        return {"notes": [note for note in self.notes if note == argument], "all": len(self.notes)}


def recorded(asked: list[tuple[str, str]]) -> Recording:
    server, found = Notes(), Recording(None, Header.now("t", "", ["notes"]))
    for number, (tool, argument) in enumerate(asked, 1):
        exchange: dict[str, Any] = {"n": number, "server": "notes", "tool": tool, "arguments": {"a": argument}}
        exchange |= {"changes": tool == "write", "sent": "maybe", "began": 0, "seconds": 0}
        found.exchanges.append(Exchange(**exchange, result=server.call(tool, argument)))
    found.make_index()
    return found


def replayed(recording: Recording, asked: list[tuple[str, str]]) -> list[Json | None]:
    """The answers of a replay, up to the first miss of a `write`, after which nothing can be known."""
    history, answers = b"", []
    for tool, argument in asked:
        key = key_of("call", "notes", tool, {"a": argument}, {}, "handshake")
        found = recording.find(history, key)
        answers.append(found[0].result if found else None)
        if tool == "write":
            if not found:
                break
            history = history_after(history, key)
    return answers


@given(calls, calls)
def test_a_hit_is_what_the_real_server_would_answer(asked: list[tuple[str, str]], again: list[tuple[str, str]]):
    server = Notes()
    for (tool, argument), answer in zip(again, replayed(recorded(asked), again), strict=False):
        real = server.call(tool, argument)
        assert answer is None or answer == real


@given(calls)
def test_the_recorded_calls_always_hit(asked: list[tuple[str, str]]):
    assert None not in replayed(recorded(asked), asked)


@given(calls, st.data())
def test_reads_may_be_left_out_and_repeated(asked: list[tuple[str, str]], data: st.DataObject):
    again = [call for call in asked if call[0] == "write" or data.draw(st.booleans())]
    again = [call for call in again for _ in range(2 if call[0] == "read" else 1)]
    assert None not in replayed(recorded(asked), again)
