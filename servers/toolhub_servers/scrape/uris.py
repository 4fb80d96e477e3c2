"""The text of a web page, a local file, or data in the URI itself."""

from __future__ import annotations

import base64
import binascii
import mimetypes
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from anyio import to_thread
from pydantic import Field

from toolhub.shared_resources import SharedResources
from toolhub_servers.scrape.model import Page, PageRenderer, PageUnreadable
from toolhub_servers.scrape.pages import open_pages, page_prefetch
from toolhub_servers.scrape.readers import Converter
from toolhub_servers.scrape.settings import PageSettings, ReaderName
from toolhub_servers.serving.local_files import ReadableFolders
from toolhub_servers.serving.server import Prefetch, ServerContext

SCHEMES = ("http:", "https:", "file:", "data:")


class UriSettings(PageSettings):
    """Options of the servers that convert URIs: those of reading pages, and the folders of local files."""

    readers: list[ReaderName] = Field(default=["direct"], min_length=1)
    local_dirs: list[str] = Field(default_factory=list)
    """Folders whose files `file:` URIs may name; without any, no local file is read."""

    @property
    def pages(self) -> PageSettings:
        """The settings for reading alone. Servers with equal ones share the pages."""
        return PageSettings.model_validate({name: getattr(self, name) for name in PageSettings.model_fields})


class Uris:
    """Reads URIs. renderer: see `open_pages`."""

    def __init__(self, settings: UriSettings, renderer: PageRenderer | None = None) -> None:
        """Raises ValueError for a folder that does not exist."""
        self._settings = settings
        self._renderer = renderer
        self._readable = ReadableFolders(settings.local_dirs)
        self._converter = Converter(settings)

    async def read(self, resources: SharedResources, uri: str) -> Page:
        """Return the page, file or data of a URI.

        Raises DatasetRefused, PageUnreadable, WebError; OSError for a file that cannot be read; ValueError for a URI
        that is invalid or has none of `SCHEMES`.
        """
        uri = uri.strip()
        scheme = uri.partition(":")[0].lower()
        if scheme == "file":
            return await self._file(uri)
        if scheme == "data":
            media_type, body = parse_data_uri(uri)
            return await self._converter.page(body, media_type, "data:")
        if scheme in ("http", "https"):
            pages = await open_pages(resources, self._settings.pages, self._renderer)
            return await pages.read(uri)
        raise ValueError(f"Unsupported URI scheme: {scheme}. Supported schemes are: file:, data:, http:, https:")

    def prefetch(self, server_context: ServerContext) -> Prefetch:
        """Return what can be done as soon as a page's URI is known."""
        return page_prefetch(server_context, self._settings.pages, self._renderer, "uri")

    async def _file(self, uri: str) -> Page:
        path = path_of(uri)
        limit = self._settings.web.max_bytes
        body = await to_thread.run_sync(self._bytes, path, limit + 1)
        media_type = mimetypes.guess_type(path)[0] or ""
        return await self._converter.page(body[:limit], media_type, uri, is_cut=len(body) > limit)

    def _bytes(self, path: str, count: int) -> bytes:
        pieces = []
        with self._readable.open(path) as stream:
            while count > 0 and (piece := stream.read(count)):
                pieces.append(piece)
                count -= len(piece)
        return b"".join(pieces)


def path_of(uri: str) -> str:
    """Return the path of a `file:` URI. Raises ValueError if it names another machine."""
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost"):
        raise ValueError(f"Unsupported file URI: {uri}. Netloc must be empty or localhost.")
    return unquote(parts.path)


def parse_data_uri(uri: str) -> tuple[str, bytes]:
    """Return the media type with its parameters, and the data (RFC 2397). Raises ValueError."""
    head, comma, data = uri[len("data:") :].partition(",")
    if not comma:
        raise ValueError("Malformed data URI, missing ',' separator")
    media_type, _, last = head.rpartition(";")
    if last.strip().lower() != "base64":
        return head, unquote_to_bytes(data)
    try:
        return media_type, base64.b64decode(unquote_to_bytes(data))
    except binascii.Error as exc:
        raise ValueError(f"Malformed data URI: {exc}") from exc


def check_not_empty(page: Page) -> str:
    """Return the text with its note. Raises PageUnreadable if there is no text."""
    if not page.text.strip():
        raise PageUnreadable("it has no text")
    return page.noted_text
