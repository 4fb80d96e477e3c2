"""When an engine is asked for its queue: hours of it, on a virtual clock."""

from __future__ import annotations

import anyio
import httpx2
import pytest
from toolhub_agent.llm.concurrency import NO_METRICS_RETRY_S, ConcurrencyLimiter, EngineLoad, LoadScraper
from trio.testing import MockClock

URL = "http://engine/v1"
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", [("trio", {"clock": MockClock(autojump_threshold=0)})], ids=["virtual"]),
]


class ScraperStage:
    """An engine whose page is `page`; None: it does not answer."""

    def __init__(self) -> None:
        self.page: httpx2.Response | None = None
        self.asked: list[str] = []
        self.loads: list[EngineLoad | None] = []
        self.slots = ConcurrencyLimiter()
        client = httpx2.AsyncClient(transport=httpx2.MockTransport(self._answer))
        self.scraper = LoadScraper(
            URL, client, self.slots, interval=1, update=lambda _url, load: self.loads.append(load)
        )

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(str(request.url))
        if self.page is None:
            await anyio.sleep_forever()
        return self.page

    async def use_for(self, seconds: float) -> None:
        async with self.slots.hold(URL, deadline=anyio.current_time() + 1):
            await anyio.sleep(seconds)


@pytest.fixture
def stage() -> ScraperStage:
    return ScraperStage()


def page(text: str, status: int = 200) -> httpx2.Response:
    return httpx2.Response(status, text=text)


async def test_an_engine_is_asked_only_while_requests_are_in_use(stage):
    stage.page = page("vllm:num_requests_waiting 3\n")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.scraper.run)
        await anyio.sleep(3600)
        assert stage.asked == []
        await stage.use_for(9.5)
        assert set(stage.asked) == {"http://engine/metrics"} and len(stage.asked) == 10
        await anyio.sleep(3600)
        assert len(stage.asked) == 10
        tasks.cancel_scope.cancel()
    assert stage.loads == [EngineLoad(3, 0)] * 10


async def test_an_engine_without_metrics_is_asked_rarely(stage):
    stage.page = page("Not Found", 404)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.scraper.run)
        await stage.use_for(NO_METRICS_RETRY_S * 3 - 1)
        tasks.cancel_scope.cancel()
    assert stage.loads == [None] * 3


@pytest.mark.parametrize("answer", [None, page("busy", 503)], ids=["silent", "503"])
async def test_an_engine_that_is_too_busy_to_answer_is_not_taken_for_one_without_a_queue(stage, answer):
    stage.page = answer
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.scraper.run)
        await stage.use_for(30)
        tasks.cancel_scope.cancel()
    assert stage.loads == [] and len(stage.asked) >= 10
