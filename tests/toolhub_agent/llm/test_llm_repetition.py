"""A model that repeats itself."""

from __future__ import annotations

from itertools import count

from toolhub_agent.llm.accumulator import RepetitionGuard, is_repeated

SENTENCE = "I should look at the harbour of Emden once more and then decide what to do. "


def pieces(text: str, size: int = 7):
    return (text[at : at + size] for at in range(0, len(text), size))


def test_a_loop_is_noticed_while_it_runs():
    guard = RepetitionGuard()
    stopped = next(number for number in count(1) if guard.feed(SENTENCE))
    assert stopped * len(SENTENCE) < 4000


def test_a_long_text_without_loops_is_never_stopped():
    guard = RepetitionGuard()
    text = "".join(
        f"Ship {n} came at {n * 7919 % 1440} minutes past midnight with {n * 31} tonnes. " for n in range(5000)
    )
    assert not any(guard.feed(piece) for piece in pieces(text))


def test_a_ruler_in_a_table_stops_nobody():
    guard = RepetitionGuard()
    page = "".join(f"Row {n} holds {n * 17} and its square {n * n}.\n" for n in range(40))
    assert not any(guard.feed(piece) for piece in pieces((page + "-" * 700 + "\n") * 3))


def test_the_rule_is_more_than_five_times_the_last_fifty_characters():
    assert not is_repeated("x. " + SENTENCE * 5)
    assert is_repeated("x. " + SENTENCE * 6)
    assert not is_repeated("yes " * 12)  # 48 characters


def test_calls_that_end_alike_are_no_loop():
    call = '<use_mcp_tool>\n<arguments>\n{"n": %d, "info": "everything"}\n</arguments>\n</use_mcp_tool>\n'
    assert not is_repeated("".join(call % n for n in range(8)))
