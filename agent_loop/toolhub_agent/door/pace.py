"""How long it took to the first token of an answer that was not streamed: an estimate.

Such an answer shows only its whole time, which is what the prompt's new tokens and the answer's tokens cost together.
Both costs are fitted to the latest answers of an endpoint (least squares, older ones count less). Hints need the first
part alone: they ask what a prefill costs.
"""

from __future__ import annotations

# What an answer counts for after the next one was seen.
_KEEP = 0.97
# Before anything is known: engines read tens of tokens in the time in which they write one.
_WRITE_TO_READ = 50.0
# Weight of that ratio: keeps a single answer solvable, hardly moves what many tell.
_SLACK = 0.01


class Pace:
    """One endpoint's cost of reading and of writing a token, in seconds."""

    def __init__(self) -> None:
        self._rr = self._rw = self._ww = self._rs = self._ws = 0.0

    def __repr__(self) -> str:
        read, write = self._costs()
        return f"<Pace {read:.2g} s per token read, {write:.2g} s written>"

    def observe(self, *, read: int, written: int, seconds: float) -> None:
        """read: prompt tokens that were not cached."""
        if read <= 0 or written <= 0 or not seconds > 0:
            return
        sums = (self._rr, self._rw, self._ww, self._rs, self._ws)
        news = (read * read, read * written, written * written, read * seconds, written * seconds)
        self._rr, self._rw, self._ww, self._rs, self._ws = (
            _KEEP * old + new for old, new in zip(sums, news, strict=True)
        )

    def first_token(self, *, read: int, written: int, seconds: float) -> float:
        """Of an answer's seconds, those before its first token."""
        read_cost, write_cost = self._costs()
        both = read * read_cost + written * write_cost
        return seconds * read * read_cost / both if both > 0 else seconds

    def _costs(self) -> tuple[float, float]:
        """Least squares; what would be negative, or follows from nothing, is replaced by the usual ratio."""
        if self._rr == 0:
            return 1.0, _WRITE_TO_READ
        usual = (self._rs + _WRITE_TO_READ * self._ws) / (
            self._rr + 2 * _WRITE_TO_READ * self._rw + _WRITE_TO_READ**2 * self._ww
        )
        # Ridge regression, towards the usual ratio.
        rr, ww = self._rr * (1 + _SLACK), self._ww * (1 + _SLACK)
        rs = self._rs + self._rr * _SLACK * usual
        ws = self._ws + self._ww * _SLACK * _WRITE_TO_READ * usual
        divisor = rr * ww - self._rw**2
        read, write = (rs * ww - ws * self._rw) / divisor, (ws * rr - rs * self._rw) / divisor
        return (read, write) if read > 0 and write > 0 else (usual, _WRITE_TO_READ * usual)
