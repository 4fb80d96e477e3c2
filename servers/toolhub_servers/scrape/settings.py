"""Options of the servers that read pages. Times are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from toolhub.config.section import Count, Pause, Seconds, Text
from toolhub_servers.browser import BrowserSettings
from toolhub_servers.serving.options import MissingOption, ServiceSettings
from toolhub_servers.web.errors import Forbidden
from toolhub_servers.web.request import authority_of
from toolhub_servers.web.settings import WebSettings

JINA = "https://r.jina.ai"

ReaderName = Literal["jina", "direct", "browser"]


class PageSettings(ServiceSettings):
    """Servers with equal settings share one cache and one connection pool in the whole hub."""

    VARIABLES: ClassVar[Mapping[str, str]] = {"jina_api_key": "JINA_API_KEY", "jina_base_url": "JINA_BASE_URL"}

    readers: list[ReaderName] = Field(default=["jina", "direct"], min_length=1)
    """Asked in this order until one has text; `browser` only for a page that was there but had no text."""
    jina_api_key: Text = Field(default="", repr=False)
    jina_base_url: Text = JINA
    jina_concurrency: Count = 50
    """Requests to Jina Reader at a time, over all tasks."""
    user_agent: Text = ""
    """The user agent of the `direct` reader; empty: toolhub and its version. Some sites answer only browsers."""
    total_s: Seconds = 120
    """For one page, with all tries."""
    reader_s: Seconds = 60
    """For one reader, so that a slow one leaves time for the next."""
    convert_s: Seconds = 30
    """For converting HTML or a document to text, in a process of its own."""
    convert_bytes: Count = 2 << 30
    """Memory of that process."""
    max_chars: Count = 2_000_000
    """Of one page's text; the rest is dropped and a note says so."""
    cache_s: Pause = 600
    """How long a page is given again after it was read; 0: only to callers who waited while it was read."""
    cache_bytes: Count = 256 << 20
    web: WebSettings = WebSettings()
    """How the `direct` reader fetches pages. Its `allow_private` holds for all readers."""
    browser: BrowserSettings = BrowserSettings()
    """The browser of the `browser` reader.

    Equal settings share one browser in the hub. `web` has its `allow_private`.
    """

    def missing_options(self, tool: str = "", prefix: str = "") -> list[MissingOption]:
        """The keys that chosen readers need and do not have.

        tool: the tool that reads pages, if the server has others. prefix: of the option's name.
        """
        if self.jina_api_key or "jina" not in self.readers:
            return []
        is_alone = self.readers == ["jina"]
        loss = "no page can be read" if is_alone else "pages are not read by Jina Reader, only by the next reader"
        return [MissingOption(f"{prefix}jina_api_key", "JINA_API_KEY", loss, is_alone and not tool, tool)]

    @field_validator("jina_base_url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        service_address(url or JINA)
        return url or JINA

    @field_validator("browser")
    @classmethod
    def _reaches_what_web_does(cls, browser: BrowserSettings) -> BrowserSettings:
        if "allow_private" in browser.model_fields_set:
            raise ValueError("set web.allow_private instead of allow_private here; it holds for all readers")
        return browser


def service_address(url: str) -> str:
    """Return `host:port` of a service that the operator gives. Raises ValueError."""
    try:
        return authority_of(url)
    except Forbidden as exc:
        raise ValueError("that is not an http(s) URL") from exc


def service_settings(url: str, concurrency: int, *, total_s: float = 60) -> WebSettings:
    """Return settings of a client for that service alone, which may be in a private network. Raises ValueError."""
    return WebSettings(
        connections=concurrency, per_host=concurrency, total_s=total_s, allow_private=[service_address(url)]
    )
