"""The servers inside a hub, and alone as programs over stdio."""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio
import psutil
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from website import standins
from website.site import Site

from testbed import third_party
from tests.toolhub_servers.scrape.scrape_stage import answer, extracted, summary_options
from toolhub import Hub, parse_config

pytestmark = pytest.mark.anyio


@pytest.fixture
def workers() -> None:
    """Worker processes, as they are."""


def config_of(site: Site, **options: Any) -> Any:
    reading = {"web": {"allow_private": [site.authority]}, **options}
    return parse_config(
        {
            "servers": {
                "jina_scrape_llm_summary": {
                    "builtin": "jina_scrape_llm_summary",
                    "options": summary_options(site),
                },
                "tool-reading": {"builtin": "reading", "options": reading},
                "tool-reader": {"builtin": "reader", "options": reading},
            }
        }
    )


async def test_in_a_hub_the_tasks_share_what_was_read(site: Site) -> None:
    url = f"{site.url}/article"
    with anyio.fail_after(60):
        async with Hub(config_of(site)) as hub, hub.task("one") as one, hub.task("two") as two:
            for task in (one, two):
                arguments = {"url": url, "info_to_extract": "depth"}
                result = await task.call("jina_scrape_llm_summary", "scrape_and_extract_info", arguments)
                assert json.loads(str(result.text))["success"]
                for server in ("tool-reading", "tool-reader"):
                    read = await task.call(server, "convert_to_markdown", {"uri": url})
                    assert "80,000 tonnes" in str(read.text)
    assert len(site.asked("/jina/")) == 1
    assert len(site.asked("/article")) == 1
    assert len(site.asked("/v1/")) == 2


async def test_a_call_that_is_cancelled_ends_its_request(site: Site) -> None:
    with anyio.fail_after(60):
        async with Hub(config_of(site)) as hub, hub.task("one") as task:
            async with anyio.create_task_group() as tasks:
                uri = {"uri": f"{site.url}/slow"}
                tasks.start_soon(task.call, "tool-reading", "convert_to_markdown", uri)
                await anyio.to_thread.run_sync(site.wait_slow)
                tasks.cancel_scope.cancel()
            await anyio.to_thread.run_sync(site.wait_left)


@pytest.mark.slow
async def test_a_page_that_needs_javascript_is_read_through_the_browser_of_the_hub(site: Site) -> None:
    if third_party.chromium() is None:
        pytest.skip("no Chromium")
    uri = {"uri": f"{site.url}/script.html"}
    with anyio.fail_after(60):
        async with Hub(config_of(site, readers=["direct", "browser"])) as hub, hub.task("one") as task:
            read = await task.call("tool-reading", "convert_to_markdown", uri)
    assert "The tide is high at 14:05." in str(read.text)


async def test_the_summary_program_answers_over_stdio_and_leaves_no_process(site: Site) -> None:
    program = StdioServerParameters(
        command=sys.executable,
        args=[
            "-m",
            "toolhub_servers",
            "jina_scrape_llm_summary",
            "--reader",
            "direct",
            "--allow-private",
            site.authority,
        ],
        env={
            "SUMMARY_LLM_BASE_URL": site.chat_url,
            "SUMMARY_LLM_MODEL_NAME": "qwen3-14b",
            "SUMMARY_LLM_API_KEY": standins.CHAT_KEY,
        },
    )
    before = set(psutil.Process().children(recursive=True))
    with anyio.fail_after(60):
        async with Client(program) as client:
            assert (await extracted(client, f"{site.url}/report.pdf"))["success"]
    left = set(psutil.Process().children(recursive=True)) - before
    assert (await anyio.to_thread.run_sync(lambda: psutil.wait_procs(left, timeout=10)))[1] == []


@pytest.mark.parametrize("name", ["reading", "reader"])
async def test_a_reading_program_answers_over_stdio(site: Site, name: str) -> None:
    program = StdioServerParameters(
        command=sys.executable, args=["-m", "toolhub_servers", name, "--allow-private", site.authority]
    )
    with anyio.fail_after(60):
        async with Client(program) as client:
            assert "80,000 tonnes" in await answer(client, "convert_to_markdown", uri=f"{site.url}/article")
