"""Reading that failed because a service has too many requests says so; a page's own server is no such service."""

from __future__ import annotations

from typing import Any

import pytest
from mcp.types import CallToolResult
from toolhub_servers.scrape import jina_scrape_llm_summary
from toolhub_servers.search import google_search
from website import standins
from website.site import Site
from website.standins import JINA_KEY

from tests.toolhub_servers.scrape.scrape_stage import hosted, serving, summary_options
from toolhub.overload import OverloadSignal, overload_in
from toolhub.shared_resources import SharedResources

pytestmark = pytest.mark.anyio

REFUSED = standins.status(429, retry_after="300")
ONLY_JINA: dict[str, Any] = {"readers": ["jina"]}


def said(result: CallToolResult) -> OverloadSignal | None:
    return overload_in(result.model_dump(by_alias=True))


async def summarised(site: Site, resources: SharedResources, **options: Any) -> CallToolResult:
    server = jina_scrape_llm_summary.create_server(context=hosted(resources), **summary_options(site, **options))
    async with serving(server) as client:
        return await client.call_tool(
            "scrape_and_extract_info", {"url": f"{site.url}/article", "info_to_extract": "How deep?"}
        )


async def scraped(site: Site, resources: SharedResources, path: str = "/article", **options: Any) -> CallToolResult:
    usual = {"jina_api_key": JINA_KEY, "jina_base_url": site.jina_url, "web": {"allow_private": [site.authority]}}
    pages = {**usual, **options}
    server = google_search.create_server(context=hosted(resources), backends=[], pages=pages)
    async with serving(server) as client:
        return await client.call_tool("scrape_website", {"url": f"{site.url}{path}"})


async def test_jina_asking_for_a_pause_is_told_by_both_tools(site: Site, resources: SharedResources) -> None:
    site.jina.then(REFUSED)
    result = await scraped(site, resources, **ONLY_JINA)
    assert said(result) == OverloadSignal(60)
    assert "HTTP Error (429)" in str(result.content)
    # The next request would come within the pause, so it is refused without being sent.
    assert said(await summarised(site, resources, **ONLY_JINA)) == OverloadSignal(60)


async def test_a_page_that_another_reader_has_is_no_pressure(site: Site, resources: SharedResources) -> None:
    site.jina.then(REFUSED)
    result = await scraped(site, resources)
    assert "80,000 tonnes" in str(result.content)
    assert said(result) is None


async def test_an_unavailable_page_behind_jina_is_no_pressure(site: Site, resources: SharedResources) -> None:
    site.jina.then(*[standins.status(503)] * 9)
    assert said(await scraped(site, resources, **ONLY_JINA)) is None


async def test_a_page_whose_own_server_refuses_is_no_pressure(site: Site, resources: SharedResources) -> None:
    result = await scraped(site, resources, "/status/429", readers=["direct"])
    assert "HTTP Error (429)" in str(result.content)
    assert said(result) is None


async def test_a_model_that_refuses_is_told(site: Site, resources: SharedResources) -> None:
    site.chat.then(standins.status(429, retry_after="600"))
    result = await summarised(site, resources)
    assert said(result) == OverloadSignal(60)
    assert '"success": false' in str(result.content)


async def test_a_model_that_answers_at_the_second_try_is_no_pressure(site: Site, resources: SharedResources) -> None:
    site.chat.then(standins.status(429, retry_after="0"))
    assert said(await summarised(site, resources)) is None


async def test_any_other_failure_of_the_model_is_no_pressure(site: Site, resources: SharedResources) -> None:
    site.chat.then(standins.status(403))
    result = await summarised(site, resources)
    assert '"success": false' in str(result.content)
    assert said(result) is None
