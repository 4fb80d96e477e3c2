"""Pages that are read before a call wants them: once, for the call that comes, and never in the way of others."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from toolhub_agent.tool_calls import Dispatcher
from toolhub_agent.tool_calls.catalog import ToolCatalog
from toolhub_agent.tools import HubTools, ToolExecutor
from toolhub_servers.scrape.jina_scrape_llm_summary import create_server
from toolhub_servers.scrape.pages import Pages
from toolhub_servers.web.errors import BadStatus, Preempted
from toolhub_servers.web.host_limits import HostLimits, SpeculativeRead, speculative_read
from website import standins
from website.site import Site

from tests.toolhub_servers.scrape.scrape_stage import answer, serving, summary_options
from toolhub import Hub, parse_config
from toolhub.model import PREFETCH_META

pytestmark = pytest.mark.anyio

MARK: Any = {PREFETCH_META: True}
Open = Callable[..., Awaitable[Pages]]


async def test_a_page_that_was_read_ahead_is_not_fetched_again(opened: Open, site: Site) -> None:
    pages = await opened()
    await pages.read_ahead(f"{site.url}/article")
    page = await pages.read(f"{site.url}/article")
    assert page.kind == "jina"
    assert len(site.seen) == 1


async def test_a_failure_of_reading_ahead_is_not_kept(opened: Open, site: Site) -> None:
    site.jina.then(standins.status(404))
    pages = await opened(readers=["jina"])
    with pytest.raises(BadStatus):
        await pages.read_ahead(f"{site.url}/article")
    assert (await pages.read(f"{site.url}/article")).kind == "jina"


async def test_a_prefetch_reads_the_page_and_does_not_execute_the_tool(site: Site) -> None:
    async with serving(create_server(**summary_options(site))) as client:
        (tool,) = (await client.list_tools()).tools
        assert (tool.meta or {})[PREFETCH_META] == ["url"]
        url = f"{site.url}/article"
        result = await client.call_tool(tool.name, {"url": url}, meta=MARK)
        assert (result.content, bool(result.is_error)) == ([], False)
        assert [seen.target for seen in site.seen] == [f"/jina/{url}"]  # and no model was asked
        await answer(client, tool.name, url=url, info_to_extract="How deep is it?")
        assert len(site.asked("/jina/")) == 1


@pytest.mark.parametrize(
    "arguments", [{}, {"url": 5}, {"url": "no url"}, {"url": "file:///etc/passwd"}, {"url": "http://127.0.0.1:1/"}]
)
async def test_a_prefetch_that_cannot_work_is_no_error_and_sends_nothing(site: Site, arguments: dict[str, str]) -> None:
    async with serving(create_server(**summary_options(site))) as client:
        result = await client.call_tool("scrape_and_extract_info", arguments, meta=MARK)
        assert (result.content, bool(result.is_error)) == ([], False)
        assert site.seen == []


async def test_a_page_with_headers_of_its_own_is_not_prefetched(site: Site) -> None:
    async with serving(create_server(**summary_options(site))) as client:
        arguments = {"url": f"{site.url}/article", "custom_headers": {"Authorization": "secret"}}
        await client.call_tool("scrape_and_extract_info", arguments, meta=MARK)
        assert site.seen == []


# --- lowest class at a host -------------------------------------------------------------------------------------------


class Reading:
    """A request that holds a place of the host until it is told to end, or is preempted."""

    def __init__(self, hosts: HostLimits, *, is_ahead: bool) -> None:
        self.ahead = SpeculativeRead() if is_ahead else None
        self.inside = anyio.Event()
        self.end = anyio.Event()
        self.was_refused = False
        self._hosts = hosts

    async def __call__(self) -> None:
        speculative_read.set(self.ahead)
        with self.ahead.scope if self.ahead is not None else anyio.CancelScope():
            try:
                async with self._hosts.rate_slot("host"):
                    self.inside.set()
                    await self.end.wait()
            except Preempted:
                self.was_refused = True


async def test_a_real_request_takes_the_place_of_a_speculative_one() -> None:
    hosts = HostLimits(2, 0)
    ahead, real, another = (Reading(hosts, is_ahead=number == 0) for number in range(3))
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for reading in (ahead, real, another):
                tasks.start_soon(reading)
                await reading.inside.wait()
            assert ahead.ahead is not None and ahead.ahead.scope.cancel_called
            real.end.set()
            another.end.set()
    assert len(hosts) == 0


async def test_a_speculative_request_that_a_call_waits_for_keeps_its_place() -> None:
    hosts = HostLimits(1, 0)
    ahead, real = Reading(hosts, is_ahead=True), Reading(hosts, is_ahead=False)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ahead)
            await ahead.inside.wait()
            assert ahead.ahead is not None
            ahead.ahead.is_wanted = True
            tasks.start_soon(real)
            await anyio.wait_all_tasks_blocked()
            assert not real.inside.is_set() and not ahead.ahead.scope.cancel_called
            ahead.end.set()
            real.end.set()


@pytest.mark.parametrize(("per_host", "pause_s", "busy"), [(2, 0, 1), (1, 0, 1), (6, 0, 3), (6, 0.1, 0)])
async def test_a_speculative_request_is_refused_where_it_would_wait_or_take_too_much(
    per_host: int, pause_s: float, busy: int
) -> None:
    hosts = HostLimits(per_host, pause_s)
    real = [Reading(hosts, is_ahead=False) for _ in range(busy)]
    ahead = Reading(hosts, is_ahead=True)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for reading in real:
                tasks.start_soon(reading)
                await reading.inside.wait()
            await ahead()
            for reading in real:
                reading.end.set()
    assert ahead.was_refused


# --- from the model's stream to the host ------------------------------------------------------------------------------


def a_config(site: Site, **more: Any) -> Any:
    pages = {"builtin": "jina_scrape_llm_summary", "options": summary_options(site), "share": "hub"}
    return parse_config({"servers": {"pages": pages}} | more, environ={})


async def test_a_page_is_fetched_while_the_model_writes_what_to_look_for(site: Site) -> None:
    url = f"{site.url}/article"
    call = {"url": url, "info_to_extract": "How deep is it?"}
    head = "<use_mcp_tool><server_name>pages</server_name><tool_name>scrape_and_extract_info</tool_name><arguments>"
    written = head + json.dumps(call)
    cut = written.index(', "info_to_extract"')
    with anyio.fail_after(60):
        async with Hub(a_config(site)) as hub, hub.task() as task:
            tools = HubTools(task)
            catalog = ToolCatalog.of(await tools.get_all_tool_definitions())
            executor = ToolExecutor(tools, timeout=30)
            async with Dispatcher(executor, catalog, prefetch=executor.prefetch) as turn:
                turn.feed(written[:cut])
                while not site.seen:
                    await anyio.sleep(0.01)
                assert [seen.target for seen in site.seen] == [f"/jina/{url}"]
                turn.feed(written[cut:] + "</arguments></use_mcp_tool>")
                await turn.finish()
                (text,) = [outcome.text async for outcome in turn.results()]
            assert json.loads(text)["success"] is True
            assert len(site.asked("/jina/")) == 1
            statistics = hub.statistics()
            assert (statistics.speculation.prefetches, statistics.speculation.used) == (1, 1)
            assert statistics.calls == 1


@pytest.mark.parametrize("off", [{"speculation": {"mode": "none"}}, {}])
async def test_where_it_is_switched_off_nothing_is_fetched_ahead(site: Site, off: dict[str, Any]) -> None:
    async with Hub(a_config(site, **off)) as hub, hub.task(speculation=None if off else "none") as task:
        await task.tools()
        await task.prefetch("pages", "scrape_and_extract_info", {"url": f"{site.url}/article"})
        await anyio.wait_all_tasks_blocked()
        assert site.seen == []


async def test_a_prefetch_is_no_answer_of_the_call_even_where_answers_are_cached(site: Site) -> None:
    options = {"backends": [], "pages": {"readers": ["direct"], "web": {"allow_private": [site.authority]}}}
    search = {"builtin": "google_search", "options": options, "share": "hub", "cache": {"scope": "hub"}}
    url = f"{site.url}/article"
    with anyio.fail_after(60):
        async with Hub(parse_config({"servers": {"search": search}}, environ={})) as hub, hub.task() as task:
            await task.tools()
            await task.prefetch("search", "scrape_website", {"url": url})
            while not hub.statistics().speculation.prefetches or not site.seen:
                await anyio.sleep(0.01)
            result = await task.call("search", "scrape_website", {"url": url})
            assert "80,000 tonnes" in result.text
            assert len(site.seen) == 1
