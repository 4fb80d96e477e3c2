"""Read a page with the first reader that has text for it, once for all tasks that want it."""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from urllib.parse import urlsplit

import anyio
from toolhub_sandbox.proxy.rules import Rule, is_public, parse_authority

from toolhub.shared_resources import SharedResources
from toolhub_servers.browser import open_renderer
from toolhub_servers.scrape.model import DatasetRefused, Page, PageRenderer, PageUnreadable, Reader, ReaderBusy
from toolhub_servers.scrape.readers import BrowserReader, Converter, DirectReader, JinaReader, unwrapped
from toolhub_servers.scrape.settings import PageSettings, service_settings
from toolhub_servers.scrape.texts import is_dataset_url
from toolhub_servers.serving.overload import overload_in, report_overload
from toolhub_servers.serving.server import Prefetch, ServerContext
from toolhub_servers.web.cache import Cache, open_cache
from toolhub_servers.web.client import open_web
from toolhub_servers.web.errors import Forbidden, Preempted, WebError, WebTimeout
from toolhub_servers.web.host_limits import SpeculativeRead, speculative_read

logger = logging.getLogger(__name__)

# They frame a message and say where it goes. A model must not set them.
_OUR_HEADERS = frozenset({"host", "connection", "content-length", "transfer-encoding", "te", "upgrade", "expect"})

# Pages that are read ahead at once, over all tasks: few beside the connections of a pool.
_MOST_AHEAD = 8

# Forms that only some programs accept as an address: 2130706433, 0x7f.1, 127.1.
_ODD_ADDRESS = re.compile(r"\w+://(?:[^/?#]*[@.])?(?:[0-9]+|0x[0-9a-f]*)(?:[:/?#]|$)", re.IGNORECASE)


class Pages:
    """The pages that a hub reads with one set of options. Use `open_pages()`."""

    def __init__(self, readers: Sequence[Reader], settings: PageSettings, cache: Cache) -> None:
        self.settings = settings
        self._cache = cache
        self._readers = tuple(readers)
        self._read_by: Counter[str] = Counter()
        self._ahead: dict[tuple[object, ...], SpeculativeRead] = {}

    def __repr__(self) -> str:
        return f"<Pages by {', '.join(reader.name for reader in self._readers)}>"

    @property
    def needs_key(self) -> bool:
        """Whether no page can be read because Jina Reader is the only reader and has no key."""
        return all(reader.name == "jina" for reader in self._readers) and not self.settings.jina_api_key

    async def read(self, url: str, headers: Mapping[str, str] | None = None) -> Page:
        """Return the page. The same page is read once, however many tasks want it within `cache_s`.

        headers: sent to the page or to Jina Reader in addition to ours. Raises DatasetRefused, or Forbidden for a
        private address, before anything is sent. Otherwise raises the error of the last reader: PageUnreadable or a
        WebError.
        """
        url = self._checked_url(url)
        sent = _checked(headers or {})
        key = (url, *sorted(sent.items()))
        while True:
            ahead = self._ahead.get(key)
            if ahead is not None:
                ahead.is_wanted = True
            try:
                return await self._cache.get(key, lambda: self._read(url, sent), size=_size)
            except Preempted:
                pass  # it was read ahead and has just made way: this is a call, which makes way for none
            except ReaderBusy as exc:
                report_overload(overload_in(exc))
                raise

    async def read_ahead(self, url: str) -> None:
        """Read a page for a call that may come, and keep it as `read()` does. It makes way for all that calls read.

        Raises what `read()` raises, and Preempted.
        """
        key = (url := self._checked_url(url),)
        if key in self._ahead:
            return
        if len(self._ahead) >= _MOST_AHEAD:
            raise Preempted(f"{len(self._ahead)} pages are being read ahead")
        ahead = self._ahead[key] = SpeculativeRead()
        try:
            await self._cache.get(key, lambda: self._read_until_preempted(url, ahead), size=_size)
        finally:
            del self._ahead[key]

    async def _read_until_preempted(self, url: str, ahead: SpeculativeRead) -> Page:
        speculative_read.set(ahead)  # in the task of the cache that computes this page alone
        with ahead.scope:
            return await self._read(url, {})
        raise Preempted(f"{_host(url)} is busy with requests of calls")

    def _checked_url(self, url: str) -> str:
        url = unwrapped(url.strip(), self.settings.jina_base_url)
        if is_dataset_url(url):
            raise DatasetRefused
        check_public(url, self.settings.web.allow_private)
        return url

    def statistics(self) -> Mapping[str, int]:
        """Counts of the cache, and of pages by reader."""
        by_reader = {f"read_by_{reader.name}": self._read_by[reader.name] for reader in self._readers}
        return {**asdict(self._cache.statistics()), **by_reader}

    async def _read(self, url: str, headers: Mapping[str, str]) -> Page:
        deadline = anyio.current_time() + self.settings.total_s
        failure: PageUnreadable | WebError | None = None
        for reader in self._readers:
            if reader.name == "browser" and failure is not None and not isinstance(failure, PageUnreadable):
                continue  # there is no page to render
            if reader.name == "browser" and (ahead := speculative_read.get()) is not None and not ahead.is_wanted:
                raise Preempted("no page is rendered ahead: a browser costs too much")
            try:
                page = await self._ask(reader, url, headers, deadline)
            except Preempted:
                raise
            except (PageUnreadable, WebError) as exc:
                failure = exc
                logger.info("reader %s has no text of %s: %s", reader.name, _host(url), exc)
            else:
                if is_dataset_url(page.url):
                    raise DatasetRefused
                self._read_by[reader.name] += 1
                return page
        assert failure is not None
        raise failure

    async def _ask(self, reader: Reader, url: str, headers: Mapping[str, str], deadline: float) -> Page:
        left = min(self.settings.reader_s, deadline - anyio.current_time())
        if left <= 0:
            raise WebTimeout(f"{_host(url)} was not read within {self.settings.total_s:g} seconds")
        try:
            with anyio.fail_after(left):
                return await reader.read(url, headers)
        except TimeoutError as exc:
            raise WebTimeout(f"reader {reader.name} did not read {_host(url)} within {left:.0f} seconds") from exc


async def open_pages(resources: SharedResources, settings: PageSettings, renderer: PageRenderer | None = None) -> Pages:
    """Return the hub's pages under these settings. Open them if they are not open yet. renderer: a browser."""
    print_ = hashlib.sha256(settings.model_dump_json().encode()).hexdigest()[:12]
    key = f"pages {print_}{'' if renderer is None else f' {id(renderer)}'}"
    return await resources.get_or_open(key, lambda: _open(resources, settings, renderer))


def page_prefetch(
    server_context: ServerContext, settings: PageSettings, renderer: PageRenderer | None, argument: str = "url"
) -> Prefetch:
    """Return what a tool that reads the page in `argument` can do as soon as it knows that argument.

    With headers of the model's own the page is another one.
    """

    async def begin(url: str) -> None:
        if settings.cache_s and is_web_url(url):
            await (await open_pages(server_context.resources, settings, renderer)).read_ahead(url)

    return Prefetch(argument, begin, unless=frozenset({"custom_headers"}))


def is_web_url(url: str) -> bool:
    try:
        parts = urlsplit(url.strip())
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


@asynccontextmanager
async def _open(
    resources: SharedResources, settings: PageSettings, renderer: PageRenderer | None
) -> AsyncIterator[Pages]:
    async def find() -> PageRenderer:
        if renderer is not None:
            return renderer
        private = {"allow_private": settings.web.allow_private}
        return await open_renderer(resources, settings.browser.model_copy(update=private))

    converter = Converter(settings)
    readers: list[Reader] = []
    for name in dict.fromkeys([*settings.readers, *(["browser"] if renderer is not None else [])]):
        if name == "jina":
            web = await open_web(resources, "jina", service_settings(settings.jina_base_url, settings.jina_concurrency))
            jina = JinaReader(
                web,
                base_url=settings.jina_base_url,
                api_key=settings.jina_api_key,
                max_chars=settings.max_chars,
            )
            readers.append(jina)
        elif name == "direct":
            web = await open_web(resources, "pages", settings.web)
            readers.append(DirectReader(web, converter, user_agent=settings.user_agent))
        else:
            readers.append(BrowserReader(find, converter, timeout=settings.reader_s))
    async with open_cache(ttl_s=settings.cache_s, max_bytes=settings.cache_bytes) as cache:
        yield Pages(readers, settings, cache)


def _size(page: Page) -> int:
    """Return about the size in memory: two bytes per character, and the rest."""
    return 2 * len(page.text) + 1000


def check_public(url: str, allow_private: Sequence[str]) -> None:
    """Check that a URL does not lead a reader elsewhere into its own private network. Raises Forbidden.

    Names are not resolved: the reader does that.
    """
    try:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        target = parse_authority(f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}")
    except ValueError:
        if _ODD_ADDRESS.match(url):
            raise Forbidden("an IPv4 address must be written as four numbers with dots between them") from None
        return  # a name outside ASCII, or something that the reader refuses
    is_local = target.host == "localhost" or target.host.endswith(".localhost")
    if is_local or (target.address is not None and not is_public(target.address)):
        if not any(Rule.of(rule).admits(target) for rule in allow_private):
            raise Forbidden(f"{target} is not public; web.allow_private may list it")


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that may be sent, with lower-case names. Raises PageUnreadable for an invalid header."""
    for name, value in headers.items():
        if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            raise PageUnreadable(f"custom_headers: {name!r} is not the name of a header")
        if not value.isprintable():
            raise PageUnreadable(f"custom_headers: the value of {name!r} has control characters in it")
    return {name.lower(): value for name, value in headers.items() if name.lower() not in _OUR_HEADERS}


def _host(url: str) -> str:
    """Return only the host, for messages: the rest of a URL may contain secrets."""
    try:
        return urlsplit(url).hostname or "an empty URL"
    except ValueError:
        return "an invalid URL"
