"""Task ids, and values of task variables, that are not allowed."""

from __future__ import annotations

BAD_VALUES = [
    "",
    ".",
    "..",
    ".hidden",
    "-option",
    "a/b",
    "../../../../etc",
    "a b",
    "a\0b",
    "a\x1b[2J",
    "a\nb",
    "ä",
    "a" * 129,
]
