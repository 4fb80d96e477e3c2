"""What is done to URLs and Markdown before a model sees them."""

from __future__ import annotations

import pytest
from toolhub_servers.scrape.texts import decode_urls, is_dataset_url, strip_markdown_links


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("A [link](http://a/b) and more", "A link and more"),
        ("![picture](http://a/b.png)", ""),
        ("[![picture](http://a/b.png) caption](http://a)", "caption"),
        ("<http://a/b>", "http://a/b"),
        ("[text][1]\n\n[1]: http://a/b", "text"),
        ("# Title\n\nOne\nTwo", "Title\n\nOne\nTwo"),
        ("use `x[1](y)` here", "use `x[1](y)` here"),
        ("- one\n- two", "- one\n- two"),
        ("3. three\n4. four", "3. three\n4. four"),
        ("```\na[1](b)\n```", "```\na[1](b)\n```"),
        ("a\n\n\n\n\nb", "a\n\nb"),
        ("*bold* and **strong**", "bold and strong"),
        ("| a | b |\n|---|---|\n| [x](http://a) | 2 |", "| a | b |\n|---|---|\n| x | 2 |"),
        ("Fish &amp; chips", "Fish & chips"),
    ],
)
def test_links_lose_where_they_lead_and_images_go(markdown: str, text: str) -> None:
    assert strip_markdown_links(markdown) == text


@pytest.mark.parametrize(
    ("url", "readable"),
    [
        ("https://zh.wikipedia.org/wiki/%E9%BB%84%E6%B2%B3", "https://zh.wikipedia.org/wiki/黄河"),
        ("http://a/%7Euser", "http://a/~user"),
        ("http://a/b%2Fc%3Fd%26e%23f", "http://a/b%2Fc%3Fd%26e%23f"),
        ("http://a/100%25", "http://a/100%25"),
        ("http://a/two%20words", "http://a/two%20words"),
        ("http://a/%E9%BB", "http://a/%E9%BB"),
        ("http://a/%C3%A9%FF", "http://a/é%FF"),
        ("http://a/%0d%0aX", "http://a/%0D%0AX"),
        ("100% of http", "100% of http"),
        ("%41 without an address", "%41 without an address"),
    ],
)
def test_what_is_readable_in_a_url_is_decoded_and_what_has_a_meaning_stays(url: str, readable: str) -> None:
    assert decode_urls(url) == readable


def test_urls_are_decoded_anywhere_in_a_json_value() -> None:
    value = {"link": "http://a/%C3%A9", "n": 1, "deep": [{"u": "see http://a/%C3%A9"}, None, True]}
    assert decode_urls(value) == {"link": "http://a/é", "n": 1, "deep": [{"u": "see http://a/é"}, None, True]}


@pytest.mark.parametrize("url", ["https://huggingface.co/Qwen", "http://a/datasets", "https://a.example/?q=hf"])
def test_other_pages_are_no_datasets(url: str) -> None:
    assert not is_dataset_url(url)
