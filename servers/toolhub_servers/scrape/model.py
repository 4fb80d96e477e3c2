"""What reading a page gives, what may read it, and the two ways in which that fails."""

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

    url: the one that answered, after redirects. kind: `html`, `text`, `document`, or `jina` for what Jina Reader made
    of whatever it was. note: a sentence about what is missing, empty when nothing is.
    """

    url: str
    title: str
    text: str
    kind: str
    is_cut: bool = False
    """Whether there was more than is in `text`."""
    note: str = ""

    @property
    def noted_text(self) -> str:
        """The text and, if something is missing, a last line that says so."""
        return f"{self.text}\n\n[{self.note}]" if self.note else self.text


class PageUnreadable(ToolhubError):
    """This reader has no text for that page; another one may. The message is the reason, for a model to read."""


class ReaderBusy(BadStatus):
    """It is the service that reads pages that has too many requests, not the page's own server."""


class DatasetRefused(ToolhubError):
    """A Hugging Face dataset or space: no reader was asked, and none may be."""

    def __init__(self) -> None:
        super().__init__(DATASET_REFUSAL)


class Reader(Protocol):
    """One way to read a page."""

    @property
    def name(self) -> str: ...

    async def read(self, url: str, headers: Mapping[str, str]) -> Page:
        """Raises PageUnreadable, or a WebError for what went wrong on the way."""
        ...


class PageRenderer(Protocol):
    """A browser, as far as reading needs one."""

    async def render(self, url: str, *, timeout: float) -> str:
        """Return the HTML of a page after its scripts ran, within `timeout` seconds. Raises WebError."""
        ...
