"""What a page says of its own character set is believed in the order in which browsers believe it."""

from __future__ import annotations

import codecs

import pytest
from toolhub_servers.web.charset import decode_text

RUSSIAN = "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему. " * 3
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 3


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        ("ä€".encode(), "", "ä€"),
        ("ä€".encode("cp1252"), "", "ä€"),
        ("ä".encode("latin-1"), "text/html; charset=ISO-8859-1", "ä"),
        (b"\x93quoted\x94", "text/html; charset=iso-8859-1", "“quoted”"),
        ("ä".encode(), 'text/plain; charset="utf-8"', "ä"),
        (codecs.BOM_UTF8 + "ä".encode(), "text/html; charset=cp1251", "ä"),
        ("ä".encode("utf-16"), "text/html", "ä"),
        (RUSSIAN.encode("koi8-r"), "text/html; charset=koi8-r", RUSSIAN),
        (JAPANESE.encode("cp932"), "text/html; charset=x-sjis", JAPANESE),
        ("中文".encode("gb18030"), "text/html; charset=GB2312", "中文"),
        (b"<html><head><meta charset='windows-1251'>" + "да".encode("cp1251"), "text/html", None),
        (b'<meta http-equiv="Content-Type" content="text/html; charset=euc-jp">' + "猫".encode("euc-jp"), "", None),
        (b'<?xml version="1.0" encoding="iso-8859-2"?>' + "ł".encode("iso-8859-2"), "application/xml", None),
        (b"<meta charset=utf-16>" + "ä".encode(), "text/html", None),
        (b"", "text/html; charset=utf-8", ""),
    ],
)
def test_text_is_read_as_its_page_says(body, content_type, text):
    decoded = decode_text(body, content_type)
    if text is None:
        assert decoded.rpartition(">")[2] in ("да", "猫", "ł", "ä")
    else:
        assert decoded == text


def test_the_header_is_believed_before_the_meta_tag():
    body = b"<meta charset=koi8-r>" + "ä".encode()
    assert decode_text(body, "text/html; charset=utf-8").endswith("ä")


def test_a_meta_tag_in_plain_text_means_nothing():
    body = b"<meta charset=koi8-r>" + "ä".encode()
    assert decode_text(body, "text/plain").endswith("ä")


@pytest.mark.parametrize("label", ["utf-7", "punycode", "idna", "unicode_escape", "rot13", "zlib", "nonsense", "\0"])
def test_a_codec_that_is_no_character_set_of_pages_is_not_used(label):
    assert decode_text("ä+AGE-".encode(), f"text/html; charset={label}") == "ä+AGE-"


def test_undeclared_text_of_another_script_is_guessed():
    pytest.importorskip("charset_normalizer")
    assert decode_text(RUSSIAN.encode("cp1251"), "text/plain") == RUSSIAN
    assert decode_text(JAPANESE.encode("cp932")) == JAPANESE


def test_a_body_that_was_cut_inside_a_character_is_still_utf_8():
    assert decode_text("ää".encode()[:-1]) == "ä"
    assert decode_text(b"caf" + b"\xe9") == "café"


def test_whatever_the_bytes_there_is_text():
    every = bytes(range(256)) * 50
    for charset in ("", "utf-8", "cp1252", "gb18030", "utf-16", "iso-2022-jp"):
        assert isinstance(decode_text(every, f"text/html; charset={charset}"), str)
