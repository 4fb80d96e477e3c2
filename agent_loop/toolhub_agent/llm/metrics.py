"""What an engine tells about its queue at `/metrics`: reading the Prometheus text, and asking for it now and then."""

from __future__ import annotations

import re
from collections.abc import Callable

import anyio
import httpx2

from toolhub_agent.llm.headers import root_of
from toolhub_agent.llm.limit import Reading
from toolhub_agent.llm.slots import Slots

# A scrape that takes longer tells of the past; one that is larger is not an engine's.
PATIENCE_S = 2.0
LARGEST_BYTES = 8 << 20
# An endpoint without metrics is asked again after this long; a proxy may have got a new server behind it.
ABSENT_S = 60.0

# Engine's own names: vLLM (the older spelling of usage too), SGLang, llama.cpp.
WAITING = frozenset({"vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred"})
RUNNING = frozenset({"vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"})
USAGE = frozenset(
    {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage", "llamacpp:kv_cache_usage_ratio"}
)
_LINE = re.compile(
    rf"^({'|'.join(sorted(WAITING | RUNNING | USAGE))})(?:\{{[^\n]*\}})?[ \t]+(\S+)(?:[ \t]+\S+)?[ \t\r]*$",
    re.MULTILINE,
)


def read_metrics(text: str) -> Reading | None:
    """The queue in a page of metrics, added up over ranks; None if the page tells of no queue."""
    waiting: list[float] = []
    running: list[float] = []
    usage = [0.0]
    for name, written in _LINE.findall(text):
        value = _number(written)
        (waiting if name in WAITING else running if name in RUNNING else usage).append(value)
    if not waiting:
        return None
    return Reading(int(sum(waiting)), int(sum(running)), min(1.0, max(usage)))


def _number(written: str) -> float:
    try:
        value = float(written)
    except ValueError:
        return 0.0
    return value if 0 <= value < 1e9 else 0.0  # NaN compares false


class Scraper:
    """Asks one endpoint every `interval` seconds, but only while requests are in use anywhere."""

    def __init__(
        self,
        endpoint: str,
        client: httpx2.AsyncClient,
        slots: Slots,
        *,
        interval: float,
        told: Callable[[str, Reading | None], None],
    ) -> None:
        self._endpoint = endpoint
        self._url = f"{root_of(endpoint)}/metrics"
        self._client = client
        self._slots = slots
        self._interval = interval
        self._told = told

    def __repr__(self) -> str:
        return f"<Scraper of {self._url} every {self._interval} s>"

    async def run(self) -> None:
        """Until cancelled. Never raises. An endpoint without metrics is told as None; one that is too busy or away
        to answer is not told of at all.
        """
        while True:
            await self._slots.wait_busy()
            pause = self._interval
            try:
                reading = await self._ask()
            except (httpx2.HTTPError, httpx2.StreamError, TimeoutError):
                pass
            else:
                self._told(self._endpoint, reading)
                pause = self._interval if reading else max(ABSENT_S, self._interval)
            await anyio.sleep(pause)

    async def _ask(self) -> Reading | None:
        with anyio.fail_after(PATIENCE_S):
            async with self._client.stream("GET", self._url) as response:
                if 400 <= response.status_code < 500:
                    return None
                response.raise_for_status()
                return read_metrics(await _text_of(response))


async def _text_of(response: httpx2.Response) -> str:
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > LARGEST_BYTES:
            return ""
    return content.decode(errors="replace")
