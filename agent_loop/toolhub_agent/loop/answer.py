"""Finding the answer in a text: the last `\\boxed{...}` with something in it."""

from __future__ import annotations

NO_ANSWER = "No \\boxed{} content found in the final answer."
"""Stands for an answer where there is none; evaluation runners compare with it."""

_OPENING = "\\boxed{"
# What models write into the box when they have nothing to say.
_PLACEHOLDERS = frozenset({"?", "??", "???", "？", "…", "……", "...", "unknown"})


def boxed_contents(text: str) -> list[str]:
    """Every boxed content in its order, braces matched; boxes that are never closed are left out."""
    found = []
    start = text.find(_OPENING)
    while start >= 0:
        begin = start + len(_OPENING)
        end = _closing_brace(text, begin)
        if end < 0:
            break  # nothing after this can be closed either
        found.append(text[begin:end].strip())
        start = text.find(_OPENING, end)
    return found


def boxed_answer(text: str) -> str | None:
    """The last boxed content that is an answer, or None."""
    answers = [content for content in boxed_contents(text) if content and content.lower() not in _PLACEHOLDERS]
    return answers[-1] if answers else None


def _closing_brace(text: str, begin: int) -> int:
    depth = 1
    for place in range(begin, len(text)):
        if text[place] == "{":
            depth += 1
        elif text[place] == "}":
            depth -= 1
            if depth == 0:
                return place
    return -1
