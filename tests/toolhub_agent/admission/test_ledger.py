"""The rules of program-level admission, one by one, on a clock that the test moves."""

from __future__ import annotations

import pytest
from toolhub_agent.admission.ledger import FORGET_S, IDLE_S, MAX_PAUSE_S, State, TokenLedger
from toolhub_agent.types import Usage


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def idle(clock: Clock) -> TokenLedger:
    """Holds 1000 tokens."""
    return TokenLedger(capacity=1000, target=1.0, now=clock)


@pytest.fixture
def ledger(idle: TokenLedger) -> TokenLedger:
    """Holds 1000 tokens. The engine works on a turn that keeps none."""
    idle.begin_turn("busy", prompt_tokens=0)
    return idle


def turn(ledger: TokenLedger, name: str, tokens: int, *, cached: int | None = None, **begun: object) -> tuple[str, ...]:
    """A whole turn of a program that is admitted at once. Returns the programs that its end admits."""
    assert name in ledger.begin_turn(name, prompt_tokens=tokens, **begun)  # type: ignore[arg-type]
    return ledger.end_turn(name, Usage(tokens, 0, cached))


def states(ledger: TokenLedger, names: str) -> str:
    """The first letters of the states: p, w, r, a; "-" for a program that is not known."""
    return "".join("-" if (state := ledger.state(name)) is None else state.value[0] for name in names)


def test_nothing_waits_while_all_programs_fit(ledger: TokenLedger):
    for size in (100, 200, 250):
        for name in "abcd":
            turn(ledger, name, size)
    assert states(ledger, "abcd") == "aaaa"
    assert ledger.used == 1000
    assert ledger.statistics().pauses == {}


def test_a_new_program_waits_until_an_older_one_is_done(ledger: TokenLedger):
    turn(ledger, "a", 600)
    assert ledger.begin_turn("b", prompt_tokens=500) == ()
    assert ledger.begin_turn("c", prompt_tokens=500) == ()
    assert ledger.remove("a") == ("b", "c")


def test_the_oldest_waiting_program_comes_first_even_if_a_younger_one_would_fit(ledger: TokenLedger):
    turn(ledger, "a", 600)
    assert ledger.begin_turn("large", prompt_tokens=900) == ()
    assert ledger.begin_turn("small", prompt_tokens=100) == ()
    assert ledger.remove("a") == ("large", "small")


def test_on_overflow_the_youngest_program_whose_tools_run_is_paused(ledger: TokenLedger):
    for name in "abc":
        turn(ledger, name, 300)
    turn(ledger, "a", 410)
    assert states(ledger, "abc") == "aap"
    assert ledger.begin_turn("c", prompt_tokens=310) == ()
    [paused] = ledger.statistics().paused
    assert (paused.name, paused.tokens, paused.is_waiting, paused.why) == (
        "c",
        300,
        True,
        "older programs fill the cache",
    )
    assert ledger.remove("a") == ()
    assert ledger.remove("b") == ("c",)


def test_a_program_in_the_middle_of_a_turn_is_never_paused(ledger: TokenLedger):
    turn(ledger, "a", 500)
    turn(ledger, "b", 300)
    assert ledger.begin_turn("b", prompt_tokens=300) == ("b",)
    assert ledger.begin_turn("a", prompt_tokens=800) == ()  # no other tools run, so `a` itself has to wait
    assert states(ledger, "ab") == "wr"
    assert ledger.end_turn("b", Usage(300, 0)) == ()
    assert ledger.remove("b") == ("a",)
    assert ledger.used == 800


def test_a_program_that_waited_begins_when_all_have_room_for_two_more_turns(ledger: TokenLedger):
    turn(ledger, "a", 300)
    turn(ledger, "a", 400)  # programs grow by 100 a turn
    assert ledger.begin_turn("b", prompt_tokens=700) == ()
    assert ledger.set_capacity(1699) == ()
    assert ledger.set_capacity(1700) == ("b",)  # 1100 for `a` and `b`, and 200 each for them and the busy one


def test_a_program_larger_than_the_cache_runs_alone(idle: TokenLedger):
    assert idle.begin_turn("huge", prompt_tokens=5000) == ("huge",)
    assert idle.begin_turn("b", prompt_tokens=10) == ()
    assert idle.end_turn("huge", Usage(5000, 10)) == ("b",)
    assert idle.begin_turn("huge", prompt_tokens=5100) == ()
    assert idle.end_turn("b", Usage(10, 10)) == ("huge",)


def test_an_idle_engine_gets_a_turn_that_waits_when_tools_take_longer_than_computing_again(
    idle: TokenLedger, clock: Clock
):
    idle.begin_turn("a", prompt_tokens=500)
    idle.begin_turn("b", prompt_tokens=400)
    clock.now += 9  # 100 tokens a second, so the engine fills its cache in 10 s; half of it is decoding
    idle.end_turn("a", Usage(500, 0))
    idle.end_turn("b", Usage(400, 0))
    assert idle.begin_turn("c", prompt_tokens=300) == ()
    clock.now += 4.9
    assert idle.schedule() == ()
    clock.now += 0.1
    assert idle.schedule() == ("c",)
    assert states(idle, "abc") == "apr"


def test_an_idle_engine_gets_a_turn_that_waits_at_once_if_tools_usually_take_that_long(idle: TokenLedger, clock: Clock):
    idle.begin_turn("a", prompt_tokens=500)
    clock.now += 5
    idle.end_turn("a", Usage(500, 0))
    clock.now += 6
    turn(idle, "a", 500)
    turn(idle, "b", 400)
    assert idle.begin_turn("c", prompt_tokens=300) == ("c",)
    assert states(idle, "abc") == "apr"


def test_a_resident_program_goes_on_before_programs_that_wait(ledger: TokenLedger):
    turn(ledger, "a", 300)
    turn(ledger, "b", 600)
    assert ledger.begin_turn("c", prompt_tokens=200) == ()
    turn(ledger, "a", 350)
    turn(ledger, "b", 620)
    assert states(ledger, "abc") == "aaw"


def test_a_program_that_waited_too_long_gets_room_from_all_others(ledger: TokenLedger, clock: Clock):
    turn(ledger, "a", 400)
    turn(ledger, "b", 400)
    assert ledger.begin_turn("c", prompt_tokens=900) == ()
    clock.now += MAX_PAUSE_S - 1
    assert ledger.begin_turn("a", prompt_tokens=410) == ("a",)
    clock.now += 1
    assert ledger.schedule() == ()  # `a` is in a turn
    assert states(ledger, "abc") == "rpw"
    assert ledger.begin_turn("b", prompt_tokens=400) == ()  # not before `c`, although it is older and fits
    assert ledger.end_turn("a", Usage(410, 0)) == ("c",)


def test_the_shared_prefix_is_counted_once(ledger: TokenLedger):
    turn(ledger, "a", 500, cached=0, prefix="system", prefix_tokens=300)
    turn(ledger, "b", 500, cached=400, prefix="system", prefix_tokens=300)
    assert ledger.used == 400 + 100 + 100  # the engine's count replaces the estimate
    turn(ledger, "c", 400, cached=0, prefix="other")
    assert ledger.used == 1000
    assert ledger.begin_turn("d", prompt_tokens=410, prefix="other") == ()


def test_growth_is_predicted_where_the_caller_knows_no_size(ledger: TokenLedger):
    turn(ledger, "a", 100)
    turn(ledger, "a", 180)
    assert ledger.begin_turn("a") == ("a",)
    assert ledger.used == 260


def test_the_length_of_an_answer_is_added_to_the_prompt(ledger: TokenLedger):
    ledger.begin_turn("a", prompt_tokens=100)
    ledger.end_turn("a", Usage(100, 50))
    ledger.begin_turn("a", prompt_tokens=200)
    assert ledger.used == 250


def test_a_cut_prompt_takes_less_room(ledger: TokenLedger):
    turn(ledger, "a", 900)
    ledger.begin_turn("a", prompt_tokens=300, is_rewritten=True)
    assert ledger.begin_turn("b", prompt_tokens=600) == ("b",)


def test_a_cancelled_wait_leaves_the_others_as_they_were(ledger: TokenLedger):
    turn(ledger, "a", 600)
    before = ledger.used
    ledger.begin_turn("b", prompt_tokens=500)
    assert ledger.cancel_turn("b") == ()
    assert ledger.used == before
    assert ledger.statistics().paused == ()


def test_a_cancelled_turn_gives_its_room_to_the_next(ledger: TokenLedger):
    ledger.begin_turn("a", prompt_tokens=900)
    ledger.begin_turn("b", prompt_tokens=500)
    assert ledger.cancel_turn("a") == ("b",)


def test_a_program_whose_next_turn_fails_keeps_its_place(ledger: TokenLedger):
    turn(ledger, "a", 600)
    ledger.begin_turn("a", prompt_tokens=700)
    ledger.cancel_turn("a")
    assert (ledger.state("a"), ledger.used) == (State.ACTING, 600)


def test_a_program_that_expects_no_turn_keeps_its_age_but_no_place(ledger: TokenLedger):
    ledger.begin_turn("old", prompt_tokens=700)
    ledger.end_turn("old", Usage(700, 0), keeps_place=False)
    turn(ledger, "young", 600)
    assert ledger.begin_turn("old", prompt_tokens=710) == ("old",)
    assert ledger.state("young") is State.PAUSED


def test_a_second_turn_at_the_same_time_is_refused(ledger: TokenLedger):
    ledger.begin_turn("a", prompt_tokens=1)
    with pytest.raises(ValueError, match="'a' has a turn already"):
        ledger.begin_turn("a", prompt_tokens=1)


# --- runs and sub-agents ----------------------------------------------------------------------------------------------


def test_runs_share_the_cache_by_their_weights(ledger: TokenLedger):
    for number in range(9):
        ledger.begin_turn(f"a{number}", prompt_tokens=250, run="a", weight=1)
    for number in range(9):
        ledger.begin_turn(f"b{number}", prompt_tokens=250, run="b", weight=3)
    for number in range(4):
        ledger.remove(f"a{number}")
    running = [name for run in "ab" for number in range(9) if ledger.state(name := f"{run}{number}") is State.RUNNING]
    assert running == ["a4", "b0", "b1", "b2"]


def test_the_run_that_has_most_for_its_weight_yields(ledger: TokenLedger):
    for name in ("a1", "a2", "a3"):
        turn(ledger, name, 300, run="a")
    assert ledger.begin_turn("b1", prompt_tokens=300, run="b") == ("b1",)
    assert [ledger.state(name) for name in ("a1", "a2", "a3")] == [State.ACTING, State.ACTING, State.PAUSED]
    assert ledger.begin_turn("b2", prompt_tokens=300, run="b") == ()  # `a` would have less than `b` after that


def test_a_parent_lends_its_place_to_its_sub_agent_and_gets_it_back(ledger: TokenLedger):
    turn(ledger, "main", 800)
    assert ledger.begin_turn("younger", prompt_tokens=500) == ()
    assert ledger.begin_turn("sub", prompt_tokens=600, parent="main") == ("sub",)
    assert states(ledger, ["main", "sub", "younger"]) == "prw"  # type: ignore[arg-type]
    ledger.end_turn("sub", Usage(600, 0))
    assert ledger.remove("sub") == ()
    assert ledger.state("main") is State.ACTING


def test_a_parent_keeps_its_place_while_its_sub_agent_fits_beside_it(ledger: TokenLedger):
    turn(ledger, "main", 400)
    turn(ledger, "sub", 400, parent="main")
    assert states(ledger, ["main", "sub"]) == "aa"  # type: ignore[arg-type]


# --- engines and clients that fail ------------------------------------------------------------------------------------


def test_everything_is_admitted_while_the_capacity_is_unknown(clock: Clock):
    ledger = TokenLedger(now=clock)
    for number in range(50):
        name = f"p{number}"
        assert ledger.begin_turn(name, prompt_tokens=100_000) == (name,)


def test_programs_that_wait_go_on_when_the_capacity_becomes_unknown(ledger: TokenLedger):
    turn(ledger, "a", 900)
    ledger.begin_turn("b", prompt_tokens=900)
    assert ledger.set_capacity(None) == ("b",)


def test_a_smaller_capacity_pauses_the_youngest_and_a_larger_one_admits_more(ledger: TokenLedger):
    turn(ledger, "a", 400)
    turn(ledger, "b", 400)
    ledger.begin_turn("c", prompt_tokens=400)
    assert ledger.set_capacity(500) == ()
    assert states(ledger, "abc") == "apw"
    assert ledger.set_capacity(2000) == ("c",)


def test_a_silent_program_loses_its_place_and_is_forgotten(ledger: TokenLedger, clock: Clock):
    turn(ledger, "silent", 900)
    ledger.begin_turn("b", prompt_tokens=900)
    ledger.cancel_turn("b")
    clock.now += IDLE_S
    assert ledger.begin_turn("b", prompt_tokens=900) == ("b",)
    assert ledger.state("silent") is State.PAUSED
    clock.now += FORGET_S
    ledger.schedule()
    assert ledger.state("silent") is None


# --- the measured limit -----------------------------------------------------------------------------------------------


def rounds(ledger: TokenLedger, *, found: float, count: int = 16) -> None:
    """Turns of one program that find this share of their tokens in the cache."""
    for _ in range(count):
        turn(ledger, "a", 400, cached=int(400 * found))


def test_the_limit_falls_when_turns_no_longer_find_their_tokens(ledger: TokenLedger):
    rounds(ledger, found=0.9, count=17)
    assert ledger.limit == 1000
    rounds(ledger, found=0.1)
    assert ledger.limit == 450
    for _ in range(100):
        rounds(ledger, found=1.0)
    assert ledger.limit == 1000


def test_an_engine_that_never_reuses_tokens_changes_no_limit(ledger: TokenLedger):
    rounds(ledger, found=0.0, count=100)
    assert ledger.limit == 1000


def test_an_unknown_capacity_is_found_when_tokens_are_evicted(clock: Clock):
    ledger = TokenLedger(now=clock)
    turn(ledger, "a", 400, cached=0)
    turn(ledger, "b", 1600)
    rounds(ledger, found=0.9, count=17)
    assert ledger.limit is None
    rounds(ledger, found=0.1)
    assert ledger.limit == 1800


def test_a_rewritten_prompt_is_no_sign_of_eviction(ledger: TokenLedger):
    rounds(ledger, found=0.9, count=17)
    for _ in range(100):
        turn(ledger, "a", 400, cached=10, is_rewritten=True)
    assert ledger.limit == 1000


def test_preemptions_lower_the_limit(ledger: TokenLedger):
    turn(ledger, "a", 900)
    ledger.note_preemptions()
    assert ledger.limit == 810
    for _ in range(100):
        ledger.note_preemptions()
    assert ledger.limit == 250  # other users have the cache, and admission cannot change that
