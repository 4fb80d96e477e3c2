"""A pool of blocks as vLLM's is: references per block, and a queue of free ones, the first evicted first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(eq=False)
class ModelBlock:
    block_id: int
    ref_cnt: int = 0


class ModelPool:
    """Refuses what would break vLLM's: a reference taken twice, more blocks than are free."""

    def __init__(self, size: int) -> None:
        self.blocks = [ModelBlock(number) for number in range(size)]
        self.free = list(self.blocks)

    def touch(self, blocks: Sequence[ModelBlock]) -> None:
        for block in blocks:
            if block.ref_cnt == 0:
                self.free.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[ModelBlock]) -> None:
        for block in ordered_blocks:
            assert block.ref_cnt > 0, f"block {block.block_id} freed twice"
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free.append(block)

    def allocate(self, count: int) -> list[ModelBlock] | None:
        """As many free blocks, or none at all."""
        if count > len(self.free):
            return None
        taken = self.free[:count]
        self.touch(taken)
        return taken


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
