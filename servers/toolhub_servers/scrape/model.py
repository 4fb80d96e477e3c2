"""Pages, readers of pages, and the errors of reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from toolhub.errors import ToolhubError
from toolhub_servers.web.errors import BadStatus

DATASET_REFUSAL = (
    "You are trying to scrape a Hugging Face dataset for answers, please do not use the scrape tool for this purpose."
)


@dataclass(frozen=True, slots=True)
class Page:
    """One page as text that a model can read.

    url: of the page that answered, after redirects. kind: `html`, `text`, `document`, or `jina` for text from Jina
    Reader. note: a sentence about what is missing; empty if nothing is.
    """

    url: str
    title: str
    text: str
    kind: str
    is_cut: bool = False
    """Whether the page had more text than `text`."""
    note: str = ""

    @property
    def noted_text(self) -> str:
        """The text, with the note as its last line if there is one."""
        return f"{self.text}\n\n[{self.note}]" if self.note else self.text


class PageUnreadable(ToolhubError):
    """This reader has no text for the page; another one may. The message is the reason, for a model to read."""


class ReaderBusy(BadStatus):
    """The service that reads pages has too many requests. It is not the page's own server."""


class DatasetRefused(ToolhubError):
    """The URL is a Hugging Face dataset or space, which must not be read. No reader was asked."""

    def __init__(self) -> None:
        super().__init__(DATASET_REFUSAL)


class Reader(Protocol):
    """One way to read a page."""

    @property
    def name(self) -> str: ...

    async def read(self, url: str, headers: Mapping[str, str]) -> Page:
        """Return the page. Raises PageUnreadable, or a WebError if the request failed."""
        ...


class PageRenderer(Protocol):
    """What reading needs of a browser."""

    async def render(self, url: str, *, timeout: float) -> str:
        """Return the HTML of a page after its scripts ran, within `timeout` seconds. Raises WebError."""
        ...
