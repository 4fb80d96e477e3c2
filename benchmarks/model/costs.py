"""What an engine's steps cost, and how to find that out from measured requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

_NOTHING = 1e-12
"""A pivot below this, of columns of length one, means that the samples cannot tell two costs apart."""


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """Seconds: of a step; of a token of a prompt in it; of each such token for each before it; of a sequence that
    decodes; of each token of its context; of a request outside steps (HTTP, tokens in and out), counted before them.

    The defaults are assumed: no published measurement of an H100 or H200 that we found tells these costs apart. They
    say 12 ms a token and 11,900 tokens a second for a prompt of 32,000. gpustack published 15,400 tokens a second for
    such prompts (Qwen3-235B-A22B in FP8 on four H100s, docs.gpustack.ai/latest/performance-lab/qwen3-235b-a22b/h100).
    """

    step_s: float = 0.012
    prefill_s: float = 6e-5
    pair_s: float = 1.5e-9
    sequence_s: float = 1.5e-4
    context_s: float = 3e-8
    arrival_s: float = 0.005

    def chunk_s(self, start: int, tokens: int) -> float:
        """What so many tokens of a prompt after the first `start` add to a step."""
        return self.prefill_s * tokens + self.pair_s * tokens * (start + tokens / 2)

    def decode_s(self, steps: int, sequences: int, context: int) -> float:
        """Steps in which so many sequences write a token each. context: tokens of all of them at the first step."""
        each = self.step_s + self.sequence_s * sequences + self.context_s * context
        return steps * each + self.context_s * sequences * steps * (steps - 1) / 2

    def request_s(self, start: int, tokens: int, budget: int) -> float:
        """Seconds to the first token of a request that runs alone."""
        return self.arrival_s + math.ceil(tokens / budget) * self.step_s + self.chunk_s(start, tokens)


A100_COSTS = EngineCosts(step_s=0.0094, prefill_s=1.8e-5, context_s=1.2e-7)
"""Qwen3-30B-A3B on an A100, after a published table (github.com/tenstorrent/tt-inference-server/issues/340, July 2025):
9.6 ms a token after 128 tokens and 10.6 ms after 8,192, and 227 ms to the first token after 8,192. It has one request
at a time. What another sequence costs, and a token for each before it, is assumed."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A measurement of `batch` equal requests at once. seconds: from sending them to the last answer.

    prefill: tokens of each prompt that were computed. cached: the others. decode: tokens of each answer.
    """

    prefill: int
    cached: int
    decode: int
    batch: int
    seconds: float

    def counts(self, budget: int) -> tuple[float, ...]:
        """How often each cost of `EngineCosts` occurs. What decoding takes of a step's tokens is left out.

        The first request's first step has only that one in it: an engine at rest begins before the others are there.
        Requests arrive side by side.
        """
        later = self.decode - 1
        whole = self.prefill + self.cached
        alone = min(self.prefill, budget)
        return (
            1 + math.ceil((self.batch * self.prefill - alone) / budget) + later,
            self.batch * self.prefill,
            self.batch * self.prefill * (self.cached + self.prefill / 2),
            self.batch * later,
            self.batch * (later * whole + later * (later - 1) / 2),
            1,
        )

    def predicted_s(self, costs: EngineCosts, budget: int) -> float:
        return _dot(astuple(costs), self.counts(budget))


@dataclass(frozen=True, slots=True)
class Calibration:
    """The costs that were found. error: mean relative distance between prediction and sample."""

    costs: EngineCosts
    error: float
    samples: int

    def __str__(self) -> str:
        return f"{self.costs}, mean error {self.error:.1%} of {self.samples} samples"


def calibrate(samples: Sequence[Sample], budget: int = 2048) -> Calibration:
    """The costs, none below zero, that fit the samples with the least squared relative error.

    budget: the engine's tokens per step. A cost that the samples cannot tell from the others comes out as 0.
    Raises ValueError without samples, or if one took no time.
    """
    if not samples or any(sample.seconds <= 0 for sample in samples):
        raise ValueError("samples of more than 0 seconds are needed")
    rows = [[count / sample.seconds for count in sample.counts(budget)] for sample in samples]
    costs = EngineCosts(*_least_squares(rows))
    found = [_dot(row, astuple(costs)) for row in rows]
    return Calibration(costs, sum(abs(share - 1) for share in found) / len(found), len(found))


def _least_squares(rows: Sequence[Sequence[float]]) -> list[float]:
    """The weights of the columns, none below zero, whose sums come closest to 1 in every row."""
    active = list(range(len(rows[0])))
    while True:
        found = dict(zip(active, _solve([[row[column] for column in active] for row in rows]), strict=True))
        if not found or min(found.values()) >= 0:
            return [found.get(column, 0.0) for column in range(len(rows[0]))]
        active.remove(min(active, key=lambda column: found[column]))


def _solve(rows: Sequence[Sequence[float]]) -> list[float]:
    """The same with any sign, by the normal equations of columns of length one."""
    columns = list(zip(*rows, strict=True))
    lengths = [math.sqrt(sum(each * each for each in column)) or 1.0 for column in columns]
    units = [[each / length for each in column] for column, length in zip(columns, lengths, strict=True)]
    matrix = [[*(_dot(one, other) for other in units), sum(one)] for one in units]
    size = len(matrix)
    solved: list[int] = []
    for place in range(size):
        if matrix[place][place] < _NOTHING:
            continue
        solved.append(place)
        pivot = [each / matrix[place][place] for each in matrix[place]]
        matrix = [
            pivot if at == place else [each - row[place] * other for each, other in zip(row, pivot, strict=True)]
            for at, row in enumerate(matrix)
        ]
    return [matrix[place][size] / lengths[place] if place in solved else 0.0 for place in range(size)]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(left * right for left, right in zip(one, other, strict=True))
