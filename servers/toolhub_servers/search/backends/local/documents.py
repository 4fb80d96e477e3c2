"""Read the documents of a folder: Markdown, plain text, HTML, and JSON with one or many documents in a file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

# A longer text is cut: a search for a word so far into a document helps nobody.
MAX_CHARACTERS = 1_000_000
# For a file that is read as a whole. A .jsonl file is read line by line and may have any size.
MAX_FILE_BYTES = 64 << 20

# Field names that data sets use, the best first.
TITLES = ("title", "name", "headline")
TEXTS = ("text", "content", "contents", "body", "passage", "markdown", "abstract")
LINKS = ("url", "link", "source_url", "uri")
DATES = ("date", "published", "published_at", "publishedDate")


@dataclass(frozen=True, slots=True)
class Document:
    """part: its number in the file, from 1; 0 for the only document of a file. link: None if it gives no URL."""

    title: str
    text: str
    part: int = 0
    link: str | None = None
    date: str | None = None


class DocumentUnreadable(ValueError):
    """The file is too large, or does not have the format of its name."""


def read_documents(file: Path) -> Iterator[Document]:
    """Yield the documents of a file whose suffix is in READERS. Raises OSError, DocumentUnreadable. Blocks."""
    reader = READERS[file.suffix.lower()]
    for document in reader(file):
        yield Document(
            _clean(document.title)[:300] or file.stem,
            _clean(document.text[:MAX_CHARACTERS]),
            document.part,
            document.link and _clean(document.link),
            document.date and _clean(document.date),
        )


def _clean(text: str) -> str:
    """Return the text without lone surrogates and null characters, which SQLite cannot store."""
    return text.encode("utf-8", "replace").decode().replace("\0", " ")


def _text_of(file: Path) -> str:
    if (size := file.stat().st_size) > MAX_FILE_BYTES:
        raise DocumentUnreadable(f"{file} has {size} bytes; more than {MAX_FILE_BYTES} are read only of .jsonl")
    return file.read_bytes().decode("utf-8-sig", "replace")


def _plain(file: Path) -> Iterator[Document]:
    yield Document(file.stem, _text_of(file))


def _markdown(file: Path) -> Iterator[Document]:
    text = _text_of(file)
    found = re.search(r"\A---\n(?:.*\n)*?title:\s*(.+)\n", text) or re.search(r"^#\s+(.+?)\s*#*$", text, re.MULTILINE)
    yield Document(found[1].strip("\"' ") if found else file.stem, text)


def _html(file: Path) -> Iterator[Document]:
    page = _Page()
    page.feed(_text_of(file))
    page.close()
    yield Document(" ".join("".join(page.title).split()) or file.stem, "".join(page.text))


class _Page(HTMLParser):
    """Collects the title and the visible text of a page."""

    UNSEEN = frozenset({"script", "style", "noscript", "template", "svg", "head"})
    INLINE = frozenset("a abbr b bdi bdo cite code em font i kbd mark q s small span strong sub sup u var wbr".split())

    def __init__(self) -> None:
        super().__init__()
        self.title: list[str] = []
        self.text: list[str] = []
        self._unseen = 0
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_title = tag == "title" and not self.title
        if tag == "body":  # ends a head that was not closed
            self._unseen = 0
        elif tag in self.UNSEEN:
            self._unseen += 1
        elif tag not in self.INLINE:
            self.text.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._in_title = False
        if tag in self.UNSEEN:
            self._unseen = max(self._unseen - 1, 0)
        elif tag not in self.INLINE:
            self.text.append("\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._unseen:
            self.text.append(data)


def _json(file: Path) -> Iterator[Document]:
    try:
        value = json.loads(_text_of(file))
    except (ValueError, RecursionError) as exc:
        raise DocumentUnreadable(f"{file} is not JSON: {exc}") from exc
    if isinstance(value, list):
        yield from _numbered(enumerate(value, start=1), file)
    elif (document := _document(value, 0, file)) is not None:
        yield document


def _json_lines(file: Path) -> Iterator[Document]:
    with file.open(encoding="utf-8-sig", errors="replace") as lines:
        yield from _numbered(_parsed(lines), file)


def _parsed(lines: Iterator[str]) -> Iterator[tuple[int, Any]]:
    """Yield the documents of a .jsonl file. A line that is not JSON is left out: the last one may be incomplete."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                continue


def _numbered(values: Iterator[tuple[int, Any]], file: Path) -> Iterator[Document]:
    for number, value in values:
        if (document := _document(value, number, file)) is not None:
            yield document


def _document(value: Any, part: int, file: Path) -> Document | None:
    default = f"{file.stem} {part}" if part else file.stem
    if isinstance(value, str):
        return Document(default, value, part)
    if not isinstance(value, dict):
        return None
    text = _first(value, TEXTS) or "\n".join(_strings(value))
    link = _first(value, LINKS)
    return Document(
        _first(value, TITLES) or default,
        text,
        part,
        link if link.startswith(("http://", "https://", "file://")) else None,
        _first(value, DATES) or None,
    )


def _first(value: dict[str, Any], names: tuple[str, ...]) -> str:
    return next((text for name in names if isinstance(text := value.get(name), str) and text.strip()), "")


def _strings(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value, in order; for objects without a known text field."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


READERS: dict[str, Callable[[Path], Iterator[Document]]] = {
    ".md": _markdown,
    ".markdown": _markdown,
    ".txt": _plain,
    ".html": _html,
    ".htm": _html,
    ".json": _json,
    ".jsonl": _json_lines,
}
