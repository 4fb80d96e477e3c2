"""Rules for URLs and Markdown that go to a model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

if TYPE_CHECKING:
    from markdown_it.token import Token

_DATASET = re.compile(r"(?:huggingface\.co|\bhf\.co)/+(?:datasets|spaces)", re.IGNORECASE)
_ESCAPE = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
# The characters that RFC 3986 reserves, the percent sign and the space: decoding them would change the URL's meaning.
_KEPT = frozenset(b":/?#[]@!$&'()*+,;=% ")
_TOO_MANY_NEWLINES = re.compile(r"\n{3,}")


def is_dataset_url(url: str) -> bool:
    """Whether the URL leads to a Hugging Face dataset or space, in whatever form it is written or wrapped."""
    return bool(_DATASET.search(unquote_to_bytes(url).decode(errors="replace")))


def decode_url_escapes(text: str) -> str:
    """Percent-decode readable characters. Keep the escapes that have a meaning."""
    return _ESCAPE.sub(lambda found: _decode(found[0]), text)


def decode_urls(value: Any) -> Any:
    """Do the same for every string with a URL in it, anywhere in a JSON value."""
    if isinstance(value, str):
        return decode_url_escapes(value) if "%" in value and "http" in value else value
    if isinstance(value, dict):
        return {key: decode_urls(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode_urls(item) for item in value]
    return value


def _decode(escapes: str) -> str:
    """Decode one run of escapes. Bytes that are not UTF-8 stay escaped."""
    text = unquote_to_bytes(escapes).decode(errors="surrogateescape")
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    raw = character.encode(errors="surrogateescape")
    if "\udc80" <= character <= "\udcff" or not character.isprintable() or (len(raw) == 1 and raw[0] in _KEPT):
        return "".join(f"%{byte:02X}" for byte in raw)
    return character


def strip_markdown_links(markdown: str) -> str:
    """Return the text of a CommonMark document without images and without link targets; code stays in backticks."""
    from markdown_it import MarkdownIt  # late: only some servers need it

    text = "".join(_plain(MarkdownIt("commonmark").parse(markdown)))
    return _TOO_MANY_NEWLINES.sub("\n\n", text).strip()


def _plain(tokens: list[Token]) -> Iterator[str]:
    for token in tokens:
        match token.type:
            case "inline":
                yield from _plain(token.children or [])
            case "text" | "html_inline" | "html_block":
                yield token.content
            case "softbreak" | "hardbreak":
                yield "\n"
            case "code_inline":
                yield f"`{token.content}`"
            case "fence" | "code_block":
                yield f"```\n{token.content}```\n\n"
            case "paragraph_close" | "heading_close":
                yield "\n\n" if not token.hidden else "\n"
            case "list_item_open":
                yield "- " if token.markup in "-+*" else f"{token.info}{token.markup} "
            case "bullet_list_close" | "ordered_list_close":
                yield "\n"
