"""URLs in results: readable where that changes nothing."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolhub_servers.scrape.texts import decode_urls

RESERVED = ":/?#[]@!$&'()*+,;= %"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://zh.wikipedia.org/wiki/%E8%8B%B9%E6%9E%9C", "https://zh.wikipedia.org/wiki/苹果"),
        ("http://a/%2F%3F%23%26%3D%20%25", "http://a/%2F%3F%23%26%3D%20%25"),
        ("see http://a/%C3%A9 and %41", "see http://a/é and A"),
        ("%E8%8B%B9 without a URL", "%E8%8B%B9 without a URL"),
        ("http://a/100%", "http://a/100%"),
        ("http://a/%zz%4", "http://a/%zz%4"),
        ("http://a/%FF", "http://a/%FF"),
    ],
)
def test_what_is_decoded_and_what_is_kept(text: str, expected: str) -> None:
    assert decode_urls(text) == expected


@given(st.text(st.characters(categories=["L", "N"]), min_size=1))
def test_a_word_in_a_url_is_readable(word: str) -> None:
    assert decode_urls(f"http://a/{quote(word)}") == f"http://a/{word}"


@given(st.text(st.sampled_from(RESERVED)))
def test_what_has_a_meaning_stays_as_it_is(text: str) -> None:
    url = f"http://a/{quote(text, safe='')}"
    assert decode_urls(url) == url


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_url_means_the_same_as_before(text: str) -> None:
    url = f"http://a/{quote(text, safe='')}"
    assert unquote(decode_urls(url)) == unquote(url)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_characters="%")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_what_has_no_escapes_is_not_touched(value: Any) -> None:
    assert decode_urls(value) == value
