"""Does the engine tell how busy it is? The number of requests at once then follows its queue."""

from __future__ import annotations

import anyio
import httpx2

from toolhub_agent.checkup.finding import Finding
from toolhub_agent.checkup.server import ModelServer, Unanswered
from toolhub_agent.llm.concurrency import MAX_METRICS_BYTES, SCRAPE_TIMEOUT_S, read_metrics

_ADVICE = {
    "vllm": "start vLLM without --disable-log-stats",
    "sglang": "start SGLang with --enable-metrics",
    "llamacpp": "start llama-server with --metrics",
    "dynamo": "Dynamo's frontend has metrics of its own, not of the workers' queues; set `llm: max_in_flight:`",
}


async def read_page(server: ModelServer) -> str:
    """What `/metrics` says; nothing where it does not exist. Raises Unanswered."""
    content = bytearray()
    try:
        with anyio.fail_after(5 * SCRAPE_TIMEOUT_S):
            async with server.http.stream("GET", f"{server.adapter.root}/metrics") as response:
                async for piece in response.aiter_bytes():
                    content += piece
                    if len(content) > MAX_METRICS_BYTES:
                        return ""
                return content.decode(errors="replace") if response.status_code == 200 else ""
    except (httpx2.HTTPError, httpx2.StreamError, TimeoutError) as exc:
        raise Unanswered(f"/metrics did not answer ({type(exc).__name__})") from exc


def load_finding(server: ModelServer, page: str) -> Finding:
    reading = read_metrics(page)
    if reading is not None:
        usage = f"{reading.usage:.0%} of its cache in use"
        return Finding("metrics", "ok", f"{reading.running} running, {reading.waiting} waiting, {usage}")
    advice = _ADVICE.get(server.adapter.name, "set `llm: max_in_flight:` to what the server takes at once")
    what = "there is nothing about a queue" if page else "there are none"
    return Finding("metrics", "weaker", f"{what} at {server.adapter.root}/metrics", advice)
