"""`scrape_website`, a tool of tool-google-search and tool-sogou-search: a page as plain text, or why there is none.

Models know these sentences. What differs, on purpose: 404, 403 and 500 really give their own texts, the other readers
read a page that Jina Reader has no text for, and the last line says when a page is cut.
"""

from __future__ import annotations

from toolhub_servers.scrape.model import DatasetRefused, PageUnreadable
from toolhub_servers.scrape.pages import Pages, is_web_url
from toolhub_servers.scrape.readers import NO_CONTENT, NO_CONTENT_FROM_JINA
from toolhub_servers.scrape.texts import is_dataset_url, strip_markdown_links
from toolhub_servers.web.errors import BadStatus, Forbidden, ResourceLimitExceeded, Unreachable, WebError, WebTimeout
from toolhub_servers.web.workers import offload

NO_KEY = "JINA_API_KEY is not set, scrape_website tool is not available."
# Parsing so much takes about 20 ms. More would make other tasks wait.
FEW_CHARS = 20_000
# Reasons that add nothing to the sentence.
_EMPTY = frozenset({NO_CONTENT_FROM_JINA, NO_CONTENT})
_OF_STATUS = {
    403: "Access Forbidden (403): Access to '{url}' is forbidden.",
    404: "Page Not Found (404): The page at '{url}' does not exist.",
    500: "Server Error (500): The server at '{url}' encountered an internal error.",
}


async def scrape_website(pages: Pages, url: str) -> str:
    """Return the text of a page without link targets, or a sentence that says why there is none.

    Never raises for what a page or its server does.
    """
    if not is_web_url(url):
        return f"Invalid URL: '{url}'. URL must start with http:// or https://"
    try:
        if pages.needs_key and not is_dataset_url(url):
            return NO_KEY
        page = await pages.read(url)
    except DatasetRefused as exc:
        return str(exc)
    except PageUnreadable as exc:
        return f"{_no_content(url)} ({exc})" if str(exc) not in _EMPTY else _no_content(url)
    except WebError as exc:
        return f"[ERROR]: {_told(exc, url)}"
    text = page.text if page.kind == "text" else await _without_links(page.text)
    if not text.strip():
        return _no_content(url)
    return f"{text}\n\n[{page.note}]" if page.note else text


async def _without_links(markdown: str) -> str:
    if len(markdown) <= FEW_CHARS:
        return strip_markdown_links(markdown)
    try:
        return await offload(strip_markdown_links, markdown, returns=str)
    except ResourceLimitExceeded:  # a page with links is better than no page
        return markdown


def _no_content(url: str) -> str:
    return f"No content retrieved from URL: {url}"


def _told(exc: WebError, url: str) -> str:
    match exc:
        case WebTimeout():
            return f"Timeout Error: Request timed out while scraping '{url}'. The website may be slow or unresponsive."
        case BadStatus(status=status) if status in _OF_STATUS:
            return _OF_STATUS[status].format(url=url)
        case BadStatus(status=status):
            return f"HTTP Error ({status}): Failed to scrape '{url}'. {exc}"
        case Forbidden() | Unreachable(sent=True, is_lasting=True):  # the second: it redirects for ever
            return f"Request Error: Failed to scrape '{url}'. {exc}"
        case Unreachable():
            return f"Connection Error: Failed to connect to '{url}'. Please check if the URL is correct and accessible."
        case _:
            return f"Unexpected Error: An unexpected error occurred while scraping '{url}': {exc}"
