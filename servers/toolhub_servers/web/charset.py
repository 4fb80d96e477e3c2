"""Decode the bytes of a page as browsers do.

A byte order mark comes first, then the header, a `meta` tag, UTF-8, and a guess. Nothing raises, because text with
replacement characters is more useful than no text.
"""

from __future__ import annotations

import codecs
import re

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
# `<meta charset>` must be near the start (HTML standard). The limit leaves room for what pages put before it.
_HEAD_BYTES = 4096
_META = re.compile(rb"""<meta[^>]{1,300}?charset\s*=\s*["']?\s*([A-Za-z0-9_:.-]{2,40})""", re.IGNORECASE)
_XML = re.compile(rb"""^\s*<\?xml[^>]{1,200}?encoding\s*=\s*["']([A-Za-z0-9_:.-]{2,40})["']""")
_PARAMETER = re.compile(r"""charset\s*=\s*["']?([^\s"';]{2,40})""", re.IGNORECASE)
# Pages that declare these sets use the larger set of the same family (Encoding standard, section 4.2).
_LARGER = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
}
# Python's other codecs are not character sets of pages, or are dangerous (utf-7, punycode).
_KNOWN = re.compile(
    r"utf-8|utf-16(-le|-be)?|cp(125[0-8]|874|866|932|949)|iso8859-\d+|koi8-[ru]|mac-(roman|cyrillic)|gb18030|"
    r"big5hkscs|euc_jp|iso2022_jp"
)
# A guess needs at least this much text and gains nothing from more. It is for scripts that are mostly outside ASCII.
_SAMPLE_BYTES = 32 << 10
_LEAST_BYTES = 64
_FOREIGN_SHARE = 0.1


def decode_text(body: bytes, content_type: str = "") -> str:
    """Return the text of a body. content_type: the whole header, which may name the character set."""
    for mark, encoding in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(encoding, "replace")
    declared = _known(_match(_PARAMETER, content_type)) or _declared_inside(body, content_type)
    if declared is not None:
        return body.decode(declared, "replace")
    text = _as_utf8(body)
    return body.decode(_guess(body), "replace") if text is None else text


def _as_utf8(body: bytes) -> str | None:
    """Return the text if it is UTF-8, even if cut inside a character. None if it is not, or if it could be anything."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(body)
    except UnicodeDecodeError:
        return None
    return text if body.isascii() or not text.isascii() else None


def _declared_inside(body: bytes, content_type: str) -> str | None:
    media = content_type.partition(";")[0].strip().lower()
    if media and "html" not in media and "xml" not in media:
        return None
    head = body[:_HEAD_BYTES]
    found = _XML.search(head) or _META.search(head)
    encoding = _known(found[1].decode("ascii")) if found else None
    # The declaration was found by reading single bytes, so the page cannot be UTF-16.
    return "utf-8" if encoding is not None and encoding.startswith("utf-16") else encoding


def _match(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


def _known(label: str) -> str | None:
    """Return Python's name for a character set of the web; None for any other."""
    try:
        name = codecs.lookup(label.removeprefix("x-")).name
    except (LookupError, ValueError):
        return None
    name = _LARGER.get(name, name)
    return name if _KNOWN.fullmatch(name) else None


def _guess(body: bytes) -> str:
    sample = body[:_SAMPLE_BYTES]
    foreign = sum(map(len, re.findall(rb"[\x80-\xff]+", sample)))
    if len(sample) < _LEAST_BYTES or foreign < len(sample) * _FOREIGN_SHARE:
        return "cp1252"
    try:
        from charset_normalizer import from_bytes
    except ImportError:  # it is installed only as a dependency of other packages
        return "cp1252"
    best = from_bytes(sample).best()
    return (_known(best.encoding) if best is not None else None) or "cp1252"
