"""Whatever programs, clients and engines do: the cache is not overfilled, no program starves and none is lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from toolhub_agent.admission.ledger import IDLE_S, MAX_PAUSE_S, State, TokenLedger
from toolhub_agent.types import Usage

NAMES = tuple("abcdefgh")
WEIGHTS = {"fast": 3.0, "slow": 1.0}
RESIDENT = (State.RUNNING, State.ACTING)


class Programs(RuleBasedStateMachine):
    """Any events in any order. `asked` holds the programs whose callers wait for an answer of the ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.capacity: int | None = 1000
        self.ledger = TokenLedger(capacity=1000, target=1.0, now=lambda: self.now)
        self.asked: set[str] = set()
        self.granted: set[str] = set()
        self.shrunk = False

    def take(self, admitted: tuple[str, ...]) -> None:
        assert set(admitted) <= self.asked
        self.asked -= set(admitted)
        self.granted |= set(admitted)

    def of(self, *states: State | None) -> list[str]:
        return [name for name in NAMES if self.ledger.state(name) in states]

    @precondition(lambda self: self.of(None, State.PAUSED, State.ACTING))
    @rule(data=st.data(), tokens=st.none() | st.integers(0, 1500), run=st.sampled_from(sorted(WEIGHTS)))
    def begin_turn(self, data: st.DataObject, tokens: int | None, run: str) -> None:
        name = data.draw(st.sampled_from(self.of(None, State.PAUSED, State.ACTING)))
        parent = data.draw(st.none() | st.sampled_from(NAMES).filter(lambda other: other != name))
        self.asked.add(name)
        self.take(self.ledger.begin_turn(name, prompt_tokens=tokens, run=run, weight=WEIGHTS[run], parent=parent))

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), tokens=st.integers(0, 1500), answer=st.integers(0, 50))
    def end_turn(self, data: st.DataObject, tokens: int, answer: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.granted)))
        self.granted.remove(name)
        self.take(self.ledger.end_turn(name, Usage(tokens, answer)))

    @precondition(lambda self: self.asked | self.granted)
    @rule(data=st.data())
    def cancel_turn(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.asked | self.granted)))
        self.asked.discard(name)
        self.granted.discard(name)
        self.take(self.ledger.cancel_turn(name))

    @rule(name=st.sampled_from(NAMES))
    def remove(self, name: str) -> None:
        self.asked.discard(name)
        self.granted.discard(name)
        self.take(self.ledger.remove(name))

    @rule(seconds=st.sampled_from([1.0, MAX_PAUSE_S / 2, MAX_PAUSE_S, IDLE_S, 10 * IDLE_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.ledger.schedule())

    @rule(capacity=st.none() | st.integers(1, 3000))
    def change_capacity(self, capacity: int | None) -> None:
        self.capacity, self.shrunk = capacity, True
        self.take(self.ledger.set_capacity(capacity))

    @rule()
    def preempt(self) -> None:
        self.shrunk = True
        self.ledger.note_preemptions()

    @invariant()
    def every_caller_is_either_waiting_or_running(self) -> None:
        assert set(self.of(State.WAITING)) == self.asked
        assert set(self.of(State.RUNNING)) == self.granted

    @invariant()
    def programs_fit_unless_one_is_alone(self) -> None:
        limit = self.ledger.limit
        residents = self.of(*RESIDENT)
        if limit is None or self.ledger.used <= limit or len(residents) == 1:
            return
        assert self.shrunk, "over the limit although the limit never fell"
        assert self.of(State.ACTING) == [], "over the limit although a program could be paused"

    @invariant()
    def a_turn_waits_only_while_another_program_has_a_place(self) -> None:
        assert not self.asked or self.of(*RESIDENT)

    def teardown(self) -> None:
        """From here on turns end, and programs that have a place begin the next turn at once."""
        waited = set(self.asked)
        for _ in range(3 * len(NAMES)):
            self.now += MAX_PAUSE_S
            self.take(self.ledger.schedule())
            for name in sorted(self.granted):
                waited.discard(name)
                self.granted.remove(name)
                self.take(self.ledger.end_turn(name, Usage(400, 10)))
                if self.ledger.state(name) in (State.ACTING, State.PAUSED):
                    self.asked.add(name)
                    self.take(self.ledger.begin_turn(name))
        assert waited == set(), "programs starve"


TestPrograms = Programs.TestCase
TestPrograms.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 120)), max_size=60))
def test_no_turn_ever_waits_while_the_sum_of_all_programs_fits(turns: list[tuple[str, int]]):
    ledger = TokenLedger(capacity=len(NAMES) * 121, target=1.0, now=lambda: 0.0)
    running: set[str] = set()
    for name, tokens in turns:
        if name in running:
            ledger.end_turn(name, Usage(tokens, 0))
        else:
            assert ledger.begin_turn(name, prompt_tokens=tokens) == (name,)
        running ^= {name}
    assert ledger.statistics().pauses == {}


@given(st.lists(st.integers(1, 900), min_size=1, max_size=8), st.data())
def test_a_cancelled_wait_changes_nothing_for_the_others(sizes: list[int], data: st.DataObject):
    ledger = TokenLedger(capacity=1000, target=1.0, now=lambda: 0.0)
    ledger.begin_turn("busy", prompt_tokens=0)
    for name, size in zip(NAMES, sizes, strict=False):
        if name in ledger.begin_turn(name, prompt_tokens=size):
            ledger.end_turn(name, Usage(size, 0))
    before = {name: ledger.state(name) for name in NAMES}, ledger.used
    assert ledger.begin_turn("late", prompt_tokens=data.draw(st.integers(1001, 2000))) == ()
    assert ledger.cancel_turn("late") == ()
    assert ({name: ledger.state(name) for name in NAMES}, ledger.used) == before
