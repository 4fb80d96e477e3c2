"""`scrape_website`: every sentence that a model may get."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
from toolhub_servers.scrape.model import DATASET_REFUSAL
from toolhub_servers.scrape.pages import Pages
from toolhub_servers.scrape.website import scrape_website
from website import standins
from website.site import Site

pytestmark = pytest.mark.anyio

Open = Callable[..., Awaitable[Pages]]


async def told(pages: Pages, url: str) -> str:
    with anyio.fail_after(20):
        return await scrape_website(pages, url)


async def test_the_text_comes_without_where_its_links_lead(opened: Open, site: Site) -> None:
    text = await told(await opened(), f"{site.url}/article")
    assert text.endswith("Jina\n\nRead by Jina for you.")
    assert text.startswith("Title: Jina's page\n\nURL Source: ")


async def test_text_that_is_no_markdown_stays_as_it_is(opened: Open, site: Site) -> None:
    assert await told(await opened(readers=["direct"]), f"{site.url}/code.py") == "def tide():\n    return 14\n"


async def test_a_page_that_was_cut_says_so(opened: Open, site: Site) -> None:
    text = await told(await opened(readers=["direct"], max_chars=100), f"{site.url}/one-line")
    assert text.endswith("\n\n[Only the first 100 characters are here; there was more.]")


@pytest.mark.parametrize(
    "url", ["", "example.org", "ftp://example.org", "file:///etc/passwd", "http://", "http://[::1"]
)
async def test_a_url_that_is_none_is_told(opened: Open, site: Site, url: str) -> None:
    told_ = await told(await opened(), url)
    assert told_ == f"Invalid URL: '{url}'. URL must start with http:// or https://"
    assert site.seen == []


@pytest.mark.parametrize("key", [standins.JINA_KEY, ""])
async def test_a_dataset_is_refused_with_and_without_a_key(opened: Open, site: Site, key: str) -> None:
    pages = await opened(readers=["jina"], jina_api_key=key)
    assert await told(pages, "https://huggingface.co/datasets/x") == DATASET_REFUSAL
    assert site.seen == []


async def test_without_a_key_and_without_another_reader_the_tool_is_not_available(opened: Open, site: Site) -> None:
    pages = await opened(readers=["jina"], jina_api_key="")
    assert await told(pages, site.url) == "JINA_API_KEY is not set, scrape_website tool is not available."


async def test_a_page_without_text_is_told(opened: Open, site: Site) -> None:
    site.jina.then(standins.status(200, " "))
    url = f"{site.url}/article"
    assert await told(await opened(readers=["jina"]), url) == f"No content retrieved from URL: {url}"
    url = f"{site.url}/empty"
    assert await told(await opened(readers=["direct"]), url) == f"No content retrieved from URL: {url}"


async def test_a_page_that_cannot_be_text_is_told_with_the_reason(opened: Open, site: Site) -> None:
    url = f"{site.url}/image.png"
    assert await told(await opened(readers=["direct"]), url) == (
        f"No content retrieved from URL: {url} (it has no text to read: its content type is image/png (208 bytes))"
    )


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (404, "[ERROR]: Page Not Found (404): The page at '{url}' does not exist."),
        (403, "[ERROR]: Access Forbidden (403): Access to '{url}' is forbidden."),
        (410, "[ERROR]: HTTP Error (410): Failed to scrape '{url}'. {host} answered 410 Gone"),
    ],
)
async def test_a_bad_status_has_a_sentence_of_its_own(opened: Open, site: Site, code: int, sentence: str) -> None:
    url = f"{site.url}/status/{code}"
    pages = await opened(readers=["direct"])
    assert await told(pages, url) == sentence.format(url=url, host=site.authority)


async def test_an_error_of_the_server_has_its_sentence_after_the_tries(opened: Open, site: Site) -> None:
    url = f"{site.url}/status/500"
    pages = await opened(readers=["direct"], web={"allow_private": [site.authority], "retries": 0})
    assert await told(pages, url) == (
        f"[ERROR]: Server Error (500): The server at '{url}' encountered an internal error."
    )


async def test_a_timeout_is_told(opened: Open, site: Site) -> None:
    url = f"{site.url}/slow"
    assert await told(await opened(readers=["direct"], total_s=0.2), url) == (
        f"[ERROR]: Timeout Error: Request timed out while scraping '{url}'. The website may be slow or unresponsive."
    )


async def test_a_connection_that_fails_is_told(opened: Open) -> None:
    url = "http://localhost:1/x"
    pages = await opened(readers=["direct"], web={"allow_private": ["localhost:1"], "retries": 0})
    assert await told(pages, url) == (
        f"[ERROR]: Connection Error: Failed to connect to '{url}'. Please check if the URL is correct and accessible."
    )


async def test_a_private_address_is_told_and_not_reached(opened: Open, site: Site) -> None:
    url = f"{site.url}/article"
    answer = await told(await opened(readers=["direct"], web={}), url)
    assert answer.startswith(f"[ERROR]: Request Error: Failed to scrape '{url}'. ")
    assert site.seen == []


async def test_endless_redirects_are_told(opened: Open, site: Site) -> None:
    url = f"{site.url}/loop"
    answer = await told(await opened(readers=["direct"]), url)
    assert answer.startswith(f"[ERROR]: Request Error: Failed to scrape '{url}'. more than 5 redirects")


async def test_a_long_page_loses_its_links_too(opened: Open, site: Site) -> None:
    site.jina.then(standins.status(200, "A [link](http://a/b). " * 10_000))
    text = await told(await opened(), f"{site.url}/article")
    assert text == ("A link. " * 10_000).strip()
