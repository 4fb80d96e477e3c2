"""The picture of `admission`: how many times as long two other policies take, by cache and by tool wait."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from benchmarks.common.result import Json

_OTHERS = {"all_s": "all at once ÷ token ledger", "fixed_s": "best fixed number of tasks ÷ token ledger"}
# Factors of 2 get the strongest colours. From ColorBrewer's PuOr: purple is a gain of the ledger, orange a loss.
_COLOURS, _STRONGEST = "PuOr", 2.0


def draw_heat_map(figure: Any, cells: Sequence[Json], foot: str) -> None:
    """Both comparisons side by side, with losses in another colour. figure: an empty one of matplotlib."""
    from matplotlib.colors import LogNorm

    figure.suptitle(textwrap.fill(statement(cells), 80), x=0.01, ha="left", size=12, weight="bold")
    figure.supxlabel(textwrap.fill(foot, 130), x=0.01, ha="left", size=7, color="#666666")
    tokens, waits = (list(dict.fromkeys(cell[key] for cell in cells)) for key in ("tokens", "wait_s"))
    for axes, (other, title) in zip(figure.subplots(1, 2, sharey=True), _OTHERS.items(), strict=True):
        gains = {(cell["tokens"], cell["wait_s"]): cell[other] / cell["ledger_s"] for cell in cells}
        rows = [[gains[cache, wait_s] for wait_s in waits] for cache in tokens]
        axes.imshow(rows, cmap=_COLOURS, norm=LogNorm(1 / _STRONGEST, _STRONGEST), aspect="auto")
        for y, row in enumerate(rows):
            for x, gain in enumerate(row):
                axes.text(x, y, f"{gain:.2f}", ha="center", va="center", color="white" if gain > 1.5 else "black")
        axes.set_title(f"{title}, modelled", loc="left", size=8)
        axes.set_xticks(range(len(waits)), [f"tools of {each:g} s" for each in waits])
        axes.set_yticks(range(len(tokens)), [f"a cache of\n{each:,} tokens" for each in tokens])
        axes.tick_params(length=0)


def statement(cells: Sequence[Json]) -> str:
    """What the numbers say, losses included."""
    once, fixed = ([cell[other] / cell["ledger_s"] for cell in cells] for other in _OTHERS)
    return (
        f"All at once takes {min(once):.2f} to {max(once):.2f} times as long as the token ledger, "
        f"the best fixed number of tasks {min(fixed):.2f} to {max(fixed):.2f} times"
    )
