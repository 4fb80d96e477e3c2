"""Reading documents: titles, texts, links and what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toolhub_servers.search.backends.local import documents
from toolhub_servers.search.backends.local.documents import Document, DocumentUnreadable, read_documents


def read(folder: Path, name: str, content: str | bytes) -> list[Document]:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_documents(file))


@pytest.mark.parametrize(
    ("content", "title"),
    [
        ("intro\n\n# The Title #\n\ntext", "The Title"),
        ("---\nlayout: x\ntitle: 'Front'\n---\n# Not this", "Front"),
        ("## Only a part\ntext", "note"),
        ("text with # inside", "note"),
    ],
)
def test_the_title_of_markdown_is_its_front_matter_or_first_heading(tmp_path: Path, content: str, title: str) -> None:
    assert read(tmp_path, "note.md", content) == [Document(title, content)]


def test_plain_text_is_named_by_its_file(tmp_path: Path) -> None:
    assert read(tmp_path, "my note.TXT", "text") == [Document("my note", "text")]


def test_a_byte_order_mark_and_bytes_that_are_no_text_are_no_obstacle(tmp_path: Path) -> None:
    assert read(tmp_path, "a.txt", b"\xef\xbb\xbfgood \xff bad \0") == [Document("a", "good \ufffd bad  ")]


def test_html_is_read_without_what_nobody_sees(tmp_path: Path) -> None:
    page = (
        "<!doctype html><html><head><title> The\n Title </title><style>p {}</style></head><body>"
        "<h1>Head</h1><p>One <b>w</b>ord &amp; more<script>no()</script></p><noscript>no</noscript>"
        "<svg><title>no</title></svg><p>end</body></html>"
    )
    (document,) = read(tmp_path, "a.html", page)
    assert document.title == "The Title"
    assert document.text.split() == ["Head", "One", "word", "&", "more", "end"]


@pytest.mark.parametrize("page", ["<title>x", "<p>a<p", "<head><body>text", "</p></script>a", "", "<!--", "<a <b>"])
def test_broken_html_is_read_as_far_as_it_goes(tmp_path: Path, page: str) -> None:
    assert len(read(tmp_path, "a.htm", page)) == 1


def test_json_may_be_one_document_or_many(tmp_path: Path) -> None:
    one = {"title": "T", "text": "body", "url": "https://example.org/t", "date": "2026-01-31"}
    expected = Document("T", "body", 0, "https://example.org/t", "2026-01-31")
    assert read(tmp_path, "one.json", json.dumps(one)) == [expected]
    many = [one, "just text", 3, None, {"contents": "c", "link": "javascript:alert(1)"}]
    assert read(tmp_path, "many.json", json.dumps(many)) == [
        Document("T", "body", 1, "https://example.org/t", "2026-01-31"),
        Document("many 2", "just text", 2),
        Document("many 5", "c", 5),
    ]


def test_an_object_without_a_text_of_its_own_is_all_its_texts(tmp_path: Path) -> None:
    value = {"question": "Who?", "answers": ["A", {"name": "B", "score": 1}], "text": "  "}
    (document,) = read(tmp_path, "qa.json", json.dumps(value))
    assert document.text.split() == ["Who?", "A", "B"]


def test_each_line_is_a_document_and_a_broken_one_is_left_out(tmp_path: Path) -> None:
    lines = '{"title": "A", "text": "a"}\n\n{"text": "b"}\n{"text": "half'
    assert read(tmp_path, "wiki.jsonl", lines) == [Document("A", "a", 1), Document("wiki 3", "b", 3)]


@pytest.mark.parametrize("content", ["{", "", "[" * 100_000])
def test_what_is_no_json_is_named(tmp_path: Path, content: str) -> None:
    with pytest.raises(DocumentUnreadable, match=r"a\.json is not JSON"):
        read(tmp_path, "a.json", content)


def test_a_file_that_is_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_FILE_BYTES", 3)
    with pytest.raises(DocumentUnreadable, match="has 4 bytes"):
        read(tmp_path, "a.txt", "1234")
    assert len(read(tmp_path, "a.jsonl", '"1"\n"2"')) == 2


def test_a_long_text_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_CHARACTERS", 3)
    assert read(tmp_path, "a.txt", "12345")[0].text == "123"


def test_half_characters_and_nulls_do_not_reach_the_index(tmp_path: Path) -> None:
    (document,) = read(
        tmp_path, "a.json", r'{"title": "t\ud800", "text": "\udfffx\u0000", "url": "https://x.example/\ud800"}'
    )
    assert (document.title, document.text, document.link) == ("t?", "?x ", "https://x.example/?")


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["title", "text", "url", "x"]), inner),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JSON)
def test_whatever_json_there_is_documents_are_text(tmp_path: Path, value: Any) -> None:
    for document in read(tmp_path, "any.json", json.dumps(value)):
        assert document.title
        document.text.encode()
