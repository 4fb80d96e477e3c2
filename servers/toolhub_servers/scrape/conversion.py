"""Convert what a server sent to text. Everything here blocks and may take long: it runs in worker processes.

trafilatura finds the main text of HTML. If it finds little or nothing, all text of the page is taken. MarkItDown
converts PDF, Office files and similar documents. Text stays as it is.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from toolhub_runtime import install_command
from toolhub_servers.web.charset import decode_text

NOT_INSTALLED = f"not installed; {install_command('pages')}"
NO_TEXT = "the page has no text"
PDF = b"%PDF-"
# If the main text of a page is shorter than this, or than this share of all its text, all its text is given.
LEAST_CHARS = 200
LEAST_SHARE = 0.05
# In a longer page the search for the main text could take minutes. All its text is found in seconds.
LARGEST_HTML = 5 << 20
_SNIFFED = 4096
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_DOCUMENTS = ("msword", "officedocument", "opendocument", "ms-excel", "ms-powerpoint", "ms-outlook", "epub", "zip")
_MEDIA = ("image/", "audio/", "video/", "font/")
_HTML_START = re.compile(
    rb"\s*(?:<!--(?:(?!-->).)*-->\s*)*<(!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL
)
_UNSEEN = frozenset({"script", "style", "noscript", "template", "head", "svg", "iframe", "object", "select"})
_BLOCKS = frozenset(
    "address article aside blockquote br dd details dialog div dl dt fieldset figcaption figure footer form h1 h2 h3 "
    "h4 h5 h6 header hr li main nav ol p pre section summary table tbody td tfoot th thead tr ul".split()
)
_LATIN_1 = re.compile(
    r""";\s*charset\s*=\s*["']?(iso-?8859-?1|latin-?1|windows-1252|us-ascii)["']?\s*(?=;|$)""", re.IGNORECASE
)
_SPACE = re.compile(r"[ \t\r\f\v\xa0]+")
_LINES = re.compile(r"\s*\n\s*")


class NoText(Exception):
    """This has no text; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Converted:
    title: str
    text: str
    kind: str
    is_cut: bool


# Their messages about a page are useless in the log of a server.
for _name in ("pdfminer", "trafilatura", "htmldate", "charset_normalizer"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


def convert(body: bytes, content_type: str, url: str, max_chars: int) -> Converted:
    """Return at most `max_chars` of text. content_type: the whole header. Raises NoText."""
    media_type = content_type.partition(";")[0].strip().lower()
    kind = kind_of(body, media_type, url)
    if kind == "html":
        title, text = from_html(decoded(body, content_type), url)
    elif kind == "document":
        title, text = from_document(body, media_type, url)
    elif kind == "text":
        title, text = "", decoded(body, content_type)
    else:
        raise NoText(f"it has no text to read: its content type is {media_type or 'unknown'} ({len(body)} bytes)")
    return Converted(title[:max_chars], text[:max_chars], kind, len(text) > max_chars)


def decoded(body: bytes, content_type: str) -> str:
    """Decode a text. Latin-1 in the header is ignored, because servers send it by default; the page itself decides."""
    return decode_text(body, _LATIN_1.sub("", content_type))


def kind_of(body: bytes, media_type: str, url: str) -> str:
    """Return `html`, `text`, `document` or `binary`: by the first bytes, then by the content type and the name."""
    start = body[:_SNIFFED]
    if PDF in start[:1024] or start.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")):
        return "document"
    if media_type.startswith(_MEDIA) and media_type != "image/svg+xml":
        return "binary"
    if _HTML_START.match(start):  # before the name: errors are sent under the name of the requested file
        return "html"
    if media_type in ("application/pdf", "application/x-ipynb+json") or urlsplit(url).path.endswith(".ipynb"):
        return "document"
    if any(name in media_type for name in _DOCUMENTS):
        return "document"
    if b"\0" in start and not start.startswith(_UTF_16) and "utf-16" not in media_type:
        return "binary"
    if media_type in ("text/html", "application/xhtml+xml"):
        return "html"
    return "text" if _is_textual(start) else "binary"


def _is_textual(start: bytes) -> bool:
    """Whether there are few control characters, as in every character set of pages."""
    controls = sum(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in start)
    return controls <= len(start) // 50 or start.startswith(_UTF_16)


def from_html(html: str, url: str) -> tuple[str, str]:
    """Return the title and the main text as Markdown. Raises NoText if the page shows nothing without its scripts."""
    tree = _parsed(html)
    everything = visible_text(tree) if tree is not None else ""
    if not everything:
        raise NoText("the page has no text; it may need JavaScript" if "<script" in html.lower() else NO_TEXT)
    title = " ".join((tree.findtext(".//title") or "").split())
    main = main_text(html, url, favor_recall=True) if len(html) <= LARGEST_HTML else ""
    enough = max(LEAST_CHARS, LEAST_SHARE * len(everything))
    return title, main if len(main) >= min(enough, len(everything)) else everything


def _parsed(html: str) -> Any:
    """Return the tree, or None if it has no element."""
    lxml_html = _module("lxml.html")
    parser = lxml_html.HTMLParser(encoding="utf-8", huge_tree=True)
    try:
        # As bytes: lxml refuses text that declares another encoding.
        return lxml_html.document_fromstring(html.encode(errors="replace"), parser=parser)
    except (ValueError, _module("lxml.etree").LxmlError):
        return None


def main_text(html: str, url: str, *, favor_recall: bool = False) -> str:
    """Return the main content as Markdown; empty if there is none. Raises NoText if trafilatura is missing."""
    trafilatura = _module("trafilatura")
    try:
        found = trafilatura.extract(
            html, url=url, output_format="markdown", include_links=True, include_tables=True, favor_recall=favor_recall
        )
    except Exception:  # it may fail on unusual pages; then all text is taken
        return ""
    return (found or "").strip()


def visible_text(tree: Any) -> str:
    """Return all text of a page, a line for each block."""
    text = _SPACE.sub(" ", "".join(_pieces(tree)))
    return _LINES.sub("\n", text).strip()


def _pieces(tree: Any) -> Iterator[str]:
    """Yield pieces of text. Not recursive, because pages may nest very deep."""
    unseen = 0
    for event, element in _module("lxml.etree").iterwalk(tree, events=("start", "end", "comment", "pi")):
        if event in ("comment", "pi"):
            if not unseen:
                yield element.tail or ""
            continue
        tag = element.tag
        if tag in _UNSEEN:
            unseen += 1 if event == "start" else -1
        if unseen:
            continue
        if tag in _BLOCKS:
            yield "\n"
        yield (
            element.text if event == "start" and tag not in _UNSEEN else element.tail if event == "end" else ""
        ) or ""


def from_document(body: bytes, media_type: str, url: str) -> tuple[str, str]:
    """Return the title and the text of a PDF, an Office file, an e-book, a notebook or an archive of these."""
    markitdown = _module("markitdown")
    extension = ".pdf" if PDF in body[:1024] else os.path.splitext(urlsplit(url).path)[1].lower() or None
    told = markitdown.StreamInfo(mimetype=media_type or None, extension=extension, url=url)
    try:
        done = _converter().convert_stream(io.BytesIO(body), stream_info=told)
    except Exception as exc:
        reason = _reason(exc)
        raise NoText(f"the document could not be converted: {reason}") from None
    if not done.markdown.strip():
        raise NoText("the document has no text; it may consist of scanned images")
    return done.title or "", done.markdown


def _reason(exc: Exception) -> str:
    """Return the first sentence of the deepest cause; converters put whole tracebacks into their errors."""
    attempts = getattr(exc, "attempts", None)
    if attempts and attempts[-1].exc_info:
        exc = attempts[-1].exc_info[1]
    text = str(exc).strip()
    return f"{type(exc).__name__}: {text.splitlines()[0][:300]}" if text else type(exc).__name__


@cache
def _converter() -> Any:
    """A MarkItDown for documents and archives of them.

    It does not convert plain text, which damaged documents look like. It has none of the converters that use the
    network or start programs (YouTube, speech, EXIF).
    """
    markitdown = _module("markitdown")
    converters = _module("markitdown.converters")
    documents = ("Docx", "Xlsx", "Xls", "Pptx", "Ipynb", "Pdf", "OutlookMsg", "Epub")
    inside = _registered(markitdown, *(getattr(converters, f"{name}Converter")() for name in documents))
    for general in (converters.PlainTextConverter(), converters.HtmlConverter(), converters.CsvConverter()):
        inside.register_converter(general, priority=markitdown.PRIORITY_GENERIC_FILE_FORMAT)
    made = _registered(markitdown, *(getattr(converters, f"{name}Converter")() for name in documents))
    # No archives in archives: that is how a small file expands without end.
    archives = converters.ZipConverter(markitdown=inside)
    made.register_converter(archives, priority=markitdown.PRIORITY_GENERIC_FILE_FORMAT)
    return made


def _registered(markitdown: Any, *converters: Any) -> Any:
    made = markitdown.MarkItDown(enable_builtins=False, enable_plugins=False)
    for converter in converters:
        made.register_converter(converter)
    return made


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        raise NoText(f"{exc.name or name} is {NOT_INSTALLED}") from exc
