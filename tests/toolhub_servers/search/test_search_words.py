"""Queries as FTS5 expressions, on a real FTS5 table: what is found, and that nothing is a syntax error."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolhub_servers.search.backends.local.words import MAX_TERMS, join_ideographs, match_of, separate_ideographs

TEXTS = {
    "cat": "The neural networks of a cat sat on the mat.",
    "dog": "A dog chased networking cables. Café à la carte.",
    "learning": "深度学习是机器学习的一个分支。Deep learning不是魔法。",
    "school": "学校的机器",
}


def found(query: str) -> list[str]:
    match = match_of(query)
    if match is None:
        return []
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(
            'CREATE VIRTUAL TABLE t USING fts5(name, body, tokenize = "porter unicode61 remove_diacritics 2")'
        )
        database.executemany(
            "INSERT INTO t VALUES (?, ?)", [(name, separate_ideographs(text)) for name, text in TEXTS.items()]
        )
        rows = database.execute("SELECT name FROM t WHERE t MATCH ? ORDER BY rank", (f"body : ({match})",))
        return [name for (name,) in rows]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("cat", ["cat"]),
        ("CATS", ["cat"]),
        ("network", ["dog", "cat"]),
        ("unknown cat", ["cat"]),
        ("dog networks cables", ["dog", "cat"]),
        ("cafe", ["dog"]),
        ('"neural networks"', ["cat"]),
        ('"networks neural"', []),
        ('"neural networks" dog', ["cat"]),
        ('"mat" "cat"', ["cat"]),
        ('"dog" "cat"', []),
        ('unclosed "dog', ["dog"]),
        ("机器学习", ["learning", "school"]),
        ("器学", ["learning"]),
        ("习学", []),
        ("校", ["school"]),
        ('"机器学习"', ["learning"]),
        ("deep学习", ["learning"]),
        ("site:example.org -cat", ["cat"]),
        ("", []),
        ('""', []),
        ("... ---", []),
    ],
)
def test_a_query_finds_what_its_words_mean(query: str, names: list[str]) -> None:
    assert found(query) == names


@pytest.mark.parametrize(
    "query",
    [
        "AND",
        "a AND",
        "NOT x",
        "NEAR(a b, 5)",
        "a*",
        "^a",
        "{name}: x",
        "name:x",
        "(",
        ")",
        "a + b",
        "'",
        '"',
        '"" a',
        "a\0b",
    ],
)
def test_what_looks_like_syntax_is_text(query: str) -> None:
    found(query)


@given(st.text())
def test_no_query_is_a_syntax_error(query: str) -> None:
    found(query)


@given(st.lists(st.sampled_from(['"', "AND", "cat", "学习", "*", "(", "-", "NEAR", ":", "_", "a_b", "\u200b"])))
def test_no_mixture_of_words_and_operators_is_a_syntax_error(pieces: list[str]) -> None:
    found(" ".join(pieces))
    found("".join(pieces))


@given(st.text(st.characters(exclude_characters="\u200b", exclude_categories=["Cs"])))
def test_a_text_is_shown_as_it_was_on_one_line(text: str) -> None:
    assert join_ideographs(separate_ideographs(text)) == " ".join(text.split())


def test_of_a_page_that_is_pasted_as_a_query_the_first_words_count() -> None:
    words = [f"w{number}" for number in range(10_000)]
    match = match_of(" ".join(words))
    assert match is not None and match.count('"') == 2 * MAX_TERMS
    assert '"w0"' in match and '"w9999"' not in match
