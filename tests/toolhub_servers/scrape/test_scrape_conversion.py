"""Making text of bodies: which way each kind goes, and what a page that fights back gets."""

from __future__ import annotations

import sys

import pytest
from toolhub_servers.scrape.conversion import NoText, convert, decoded, kind_of
from website import documents
from website.pages import ARTICLE, SCRIPTED


@pytest.mark.parametrize(
    ("body", "media_type", "url", "kind"),
    [
        (b"<!DOCTYPE html><p>x", "", "http://a/b", "html"),
        (b"<!-- a -->\n<html>", "text/plain", "http://a/b", "html"),
        (b"x", "text/html", "http://a/b", "html"),
        (b"<html>an error", "application/pdf", "http://a/b", "html"),
        (b"<!---->" * 500 + b"x", "text/plain", "http://a/b", "text"),
        (b"%PDF-1.7", "text/html", "http://a/b", "document"),
        (b"PK\x03\x04", "application/octet-stream", "http://a/b", "document"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "", "http://a/b.doc", "document"),
        (b"{}", "application/json", "http://a/b", "text"),
        (b"{}", "application/json", "http://a/b.ipynb", "document"),
        (b"a = 1", "", "http://a/b", "text"),
        (b"a = 1", "application/x-something", "http://a/b", "text"),
        (b"\x89PNG\r\n\x1a\n\0\0", "image/png", "http://a/b", "binary"),
        (b"<svg/>", "image/svg+xml", "http://a/b", "text"),
        (b"\0\1\2\3" * 99, "text/plain", "http://a/b", "binary"),
        ("wörter".encode("utf-16"), "text/plain", "http://a/b", "text"),
    ],
)
def test_a_kind_is_what_the_body_looks_like(body: bytes, media_type: str, url: str, kind: str) -> None:
    assert kind_of(body, media_type, url) == kind


def test_what_is_said_to_be_latin_1_is_looked_at_first() -> None:
    assert decoded("déjà vu".encode(), "text/html; charset=ISO-8859-1") == "déjà vu"
    assert decoded("déjà vu".encode("latin-1"), "text/html; charset=ISO-8859-1") == "déjà vu"
    assert decoded("déjà vu".encode("latin-1"), 'text/html;charset="latin1"; x=y') == "déjà vu"
    assert decoded("день".encode("koi8-r"), "text/html; charset=koi8-r") == "день"


def test_scripts_and_styles_are_no_text() -> None:
    with pytest.raises(NoText, match="it may need JavaScript"):
        convert(SCRIPTED.encode(), "text/html", "http://a/", 1000)


@pytest.mark.parametrize("body", [b"", b"   ", b"<html>", b"<!-- only a comment -->", b"<?xml version='1.0'?>"])
def test_a_page_of_nothing_has_no_text(body: bytes) -> None:
    with pytest.raises(NoText, match="the page has no text"):
        convert(body, "text/html", "http://a/", 1000)


def test_html_with_a_declaration_of_its_own_is_read() -> None:
    body = b'<?xml version="1.0" encoding="iso-8859-15"?><html><body><p>It costs 3 \xa4.</p></body></html>'
    assert "It costs 3 €." in convert(body, "application/xhtml+xml", "http://a/", 1000).text


def test_very_deep_html_is_read() -> None:
    body = b"<div>" * 1000 + b"the bottom of the well" + b"</div>" * 1000
    assert "the bottom of the well" in convert(body, "text/html", "http://a/", 1000).text


def test_visible_text_keeps_blocks_apart_and_words_together() -> None:
    body = b"<body><h1>A</h1>one<br>two <b>th</b>ree<!-- no -->!<ul><li>x<li>y</ul><script>var z</script> end</body>"
    assert convert(body, "text/html", "http://a/", 1000).text == "A\none\ntwo three!\nx\ny\nend"


@pytest.mark.parametrize(
    "body",
    [b"%PDF-1.4\nthis is none", b"PK\x03\x04 this is none", documents.docx("A", "B")[:300]],
    ids=["pdf", "zip", "half a docx"],
)
def test_a_damaged_document_never_becomes_text(body: bytes) -> None:
    with pytest.raises(NoText, match="the document could not be converted|the document has no text"):
        convert(body, "application/octet-stream", "http://a/b", 1000)


def test_an_archive_is_read_file_by_file_but_not_the_archives_in_it() -> None:
    inner = documents.zipped({"secret.txt": b"too deep"})
    body = documents.zipped({"a.txt": b"on top", "page.html": ARTICLE.encode(), "inner.zip": inner})
    text = convert(body, "application/zip", "http://a/b.zip", 10_000).text
    assert "on top" in text and "The harbour of Emden" in text
    assert "too deep" not in text


def test_the_text_is_cut_at_the_limit() -> None:
    done = convert(b"0123456789", "text/plain", "http://a/", 4)
    assert (done.text, done.is_cut) == ("0123", True)
    assert not convert(b"0123456789", "text/plain", "http://a/", 10).is_cut


@pytest.mark.parametrize(
    ("body", "module"), [(b"<html>text", "lxml.html"), (ARTICLE.encode(), "trafilatura"), (b"%PDF-1.4", "markitdown")]
)
def test_what_is_not_installed_is_named_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, body: bytes, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(NoText, match=r"not installed; pip install 'toolhub-runtime\[pages\]'"):
        convert(body, "", "http://a/", 1000)
