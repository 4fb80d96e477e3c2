"""Translate a query to an expression of SQLite's FTS5. No query can cause a syntax error.

FTS5 takes a run of Chinese or Japanese characters for one word. So an invisible character that counts as a space
separates them, in the index and in queries. A query with several of them asks for each pair of neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# A zero width space, which is not a letter for FTS5.
APART = "\u200b"
_IDEOGRAPH = re.compile("([\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff])")
_WORD = re.compile(r"[^\W_]+")
_PHRASE = re.compile(r'"([^"]*)"')
# A whole page as a query is cut to its first words.
MAX_TERMS = 64


def separate_ideographs(text: str) -> str:
    """Return the text in the form that is indexed."""
    return _IDEOGRAPH.sub(rf"{APART}\1{APART}", text).replace(APART * 2, APART)


def join_ideographs(text: str) -> str:
    """Return the original text, on one line."""
    return " ".join(text.replace(APART, "").split())


def match_of(query: str) -> str | None:
    """Return the FTS5 expression for a query; None if it has no words.

    Words are alternatives, which bm25 ranks by number and rarity. What is in double quotes must occur.
    """
    phrases = [phrase for quoted in _PHRASE.findall(query) if (phrase := _phrase(_words(quoted)))][:MAX_TERMS]
    terms = list(dict.fromkeys([*phrases, *_terms(_words(_PHRASE.sub(" ", query)))]))[:MAX_TERMS]
    if not terms:
        return None
    return " AND ".join([*phrases, f"({' OR '.join(terms)})"])


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


def _phrase(words: list[str]) -> str:
    """Return the words in quotes, so that none is an operator. Letters and digits need no escape."""
    return f'"{separate_ideographs(" ".join(words))}"' if words else ""


def _terms(words: list[str]) -> Iterator[str]:
    for word in words:
        # Splitting at a group also gives the ideographs: "深度learning" gives 深, 度 and learning.
        pieces = [piece for piece in _IDEOGRAPH.split(word) if piece]
        run: list[str] = []
        for piece in pieces:
            if _IDEOGRAPH.fullmatch(piece):
                run.append(piece)
                continue
            yield from _pairs(run)
            run = []
            yield f'"{piece}"'
        yield from _pairs(run)


def _pairs(run: list[str]) -> Iterator[str]:
    if len(run) == 1:
        yield f'"{run[0]}"'
    for first, second in zip(run, run[1:], strict=False):
        yield f'"{first}{APART}{second}"'
