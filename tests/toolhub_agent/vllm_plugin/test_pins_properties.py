"""Whatever happens to requests and pins, no reference is lost or taken twice and the cap holds."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from toolhub_agent.vllm_plugin.pins import Pins

from tests.toolhub_agent.vllm_plugin.pool_model import Clock, ModelBlock, ModelPool

SIZE, CAP = 24, 12
KEYS = st.sampled_from("abcdef")


class PinsAndRequests(RuleBasedStateMachine):
    """Keeps its own account: which blocks each request uses, and which each pin must hold until when."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = ModelPool(SIZE)
        self.clock = Clock()
        self.pins: Pins[ModelBlock] = Pins(self.pool, cap_blocks=CAP, clock=self.clock)
        self.running: list[list[ModelBlock]] = []
        self.known: dict[str, tuple[frozenset[ModelBlock], float]] = {}

    @rule(count=st.integers(1, 8), reused=st.integers(0, 6), data=st.data())
    def start_request(self, count: int, reused: int, data: st.DataObject) -> None:
        """One that finds the beginning of a pinned conversation in the cache, or nothing."""
        prefix: list[ModelBlock] = []
        if self.known and reused:
            held = data.draw(st.sampled_from(sorted(self.known)))
            prefix = sorted(self.known[held][0], key=lambda block: block.block_id)[:reused]

        def attempt() -> list[ModelBlock] | None:
            if count + sum(block.ref_cnt == 0 for block in prefix) > len(self.pool.free):
                return None
            self.pool.touch(prefix)
            return [*prefix, *(self.pool.allocate(count) or [])]

        blocks = attempt() or self.pins.make_room(attempt)
        if blocks is None:
            in_use = {block for blocks in self.running for block in blocks}
            assert count + len(set(prefix) - in_use) > SIZE - len(in_use), "delayed though pins alone were in the way"
            return
        self.running.append(blocks)
        self.known = {key: self.known[key] for key in self.known if self.is_held(key)}

    @precondition(lambda self: self.running)
    @rule(key=KEYS, ttl=st.floats(0.1, 20), data=st.data())
    def finish_request_with_pin(self, key: str, ttl: float, data: st.DataObject) -> None:
        blocks = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        others = {block for other, (held, _) in self.known.items() if other != key for block in held}
        fits = len(others | set(blocks)) <= CAP
        assert self.pins.hold(key, blocks, ttl) == fits
        if fits:
            self.known[key] = (frozenset(blocks), self.clock.now + ttl)
        self.pool.free_blocks(reversed(blocks))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish_request(self, data: st.DataObject) -> None:
        self.pool.free_blocks(reversed(self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))))

    @rule(key=KEYS)
    def release(self, key: str) -> None:
        assert self.pins.release(key) == (self.known.pop(key, None) is not None)

    @rule(seconds=st.floats(0.1, 15))
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.pins.expire()
        self.known = {key: pin for key, pin in self.known.items() if pin[1] > self.clock.now}

    @rule()
    def reset(self) -> None:
        self.pins.clear()
        self.known.clear()

    def is_held(self, key: str) -> bool:
        """Whether the key still has its pin; only pressure takes one without being asked."""
        return key in self.pins

    @invariant()
    def every_reference_is_accounted_for(self) -> None:
        pinned = {block for held, _ in self.known.values() for block in held}
        for block in self.pool.blocks:
            users = sum(block in blocks for blocks in self.running)
            assert block.ref_cnt == users + (block in pinned)
            assert (block in self.pool.free) == (block.ref_cnt == 0)

    @invariant()
    def the_cap_holds(self) -> None:
        statistics = self.pins.statistics()
        assert statistics.blocks == len({block for held, _ in self.known.values() for block in held}) <= CAP
        assert statistics.pins == len(self.known) <= CAP

    def teardown(self) -> None:
        self.pins.clear()
        for blocks in self.running:
            self.pool.free_blocks(blocks)
        assert len(self.pool.free) == SIZE


TestPinsAndRequests = PinsAndRequests.TestCase
TestPinsAndRequests.settings = settings(max_examples=150, stateful_step_count=30)
