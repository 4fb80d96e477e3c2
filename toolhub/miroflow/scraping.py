"""Two rules for scrape tools: datasets that contain the answers are not read; MarkItDown is the fallback."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import anyio

_DATASETS = ("huggingface.co/datasets", "huggingface.co/spaces")
# The old transport's words for "the server could not be used"; what is left of it is what some servers say on stderr.
_HOPELESS = "unhandled errors"


def is_dataset_url(url: Any) -> bool:
    """Whether it points to a Hugging Face dataset or space."""
    return isinstance(url, str) and any(place in url for place in _DATASETS)


def has_fallback(arguments: Any, message: str) -> bool:
    """Whether a failed scrape may be tried with MarkItDown: by an old rule, and only where that is installed."""
    return (
        _HOPELESS in message
        and isinstance(arguments, dict)
        and arguments.get("url") is not None
        and importlib.util.find_spec("markitdown") is not None
    )


async def read_with_markitdown(url: str) -> str:
    """Return the document as Markdown, converted in a worker thread. Raises whatever MarkItDown raises."""
    return await anyio.to_thread.run_sync(_convert, url, abandon_on_cancel=True)


def _convert(url: str) -> str:
    markitdown = importlib.import_module("markitdown")
    converter = markitdown.MarkItDown(docintel_endpoint="<document_intelligence_endpoint>")
    return str(converter.convert(url).text_content)
