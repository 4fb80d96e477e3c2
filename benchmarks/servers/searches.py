"""What connections cost a task with hundreds of searches: the hub keeps them, or every call has a new client."""

from __future__ import annotations

import ssl
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import httpx2

from benchmarks.common.measure import interleaved
from benchmarks.common.result import Json, hub_config
from benchmarks.common.search_endpoint import make_certificate
from benchmarks.common.subprocess_worker import Worker
from benchmarks.common.worker_main import Act
from toolhub import Hub

# The cost of a handshake with a server 10 ms away: two round trips.
HANDSHAKE_S = 0.02
SERVER = "search_and_scrape_webpage"
VARIANTS = ("hub", "kept", "each")
_KEY = "none is needed here"
# For one variant in one round. A search takes some 50 ms if each has a client of its own.
_PATIENCE_S = 300.0

Search = Callable[[str], Awaitable[None]]
_trust_of_system = httpx2.create_ssl_context


# --- inside -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_searcher(variant: str, url: str, certificate: str | None) -> AsyncIterator[Act]:
    """Answers ``{"searches": n, "topic": text}`` with ``{"wall_s", "cpu_s"}``, for one task. A worker role.

    certificate: of the endpoint, trusted beside what the system trusts, whose list is read all the same.
    """

    async def act(request: Json) -> Json:
        async with _OPENERS[variant](url, partial(_trust, certificate)) as search:
            wall, cpu = time.perf_counter(), time.process_time()
            for number in range(request["searches"]):
                await search(f"{request['topic']} {number}")
            return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}

    yield act


def _trust(certificate: str | None, *, trust_env: bool = False) -> ssl.SSLContext:
    """Replaces `httpx2.create_ssl_context`."""
    context = _trust_of_system(trust_env=trust_env)
    if certificate is not None:
        context.load_verify_locations(certificate)
    return context


Trust = Callable[[], ssl.SSLContext]


@asynccontextmanager
async def _through_hub(url: str, trust: Trust) -> AsyncIterator[Search]:
    """Search through the builtin server of a task, with default options."""
    server = {
        "builtin": SERVER,
        "options": {"serper": {"api_key": _KEY, "base_url": url}},
    }
    with tempfile.TemporaryDirectory() as state, patch.object(httpx2, "create_ssl_context", trust):
        async with Hub(hub_config({SERVER: server}, Path(state))) as hub, hub.task("searching") as task:
            await task.warm()

            async def search(query: str) -> None:
                result = await task.call(SERVER, "google_search", {"q": query})
                _check(not result.is_error and query in str(result.text))

            yield search


@asynccontextmanager
async def _with_one_client(url: str, trust: Trust) -> AsyncIterator[Search]:
    """Search with one client for all calls, without a server or a hub."""
    async with httpx2.AsyncClient(verify=trust()) as client:
        yield partial(_ask, client, url)


@asynccontextmanager
async def _with_a_client_each(url: str, trust: Trust) -> AsyncIterator[Search]:
    """Search with a new client for each call, as MiroFlow's server does."""

    async def search(query: str) -> None:
        async with httpx2.AsyncClient(verify=trust()) as client:
            await _ask(client, url, query)

    yield search


async def _ask(client: httpx2.AsyncClient, url: str, query: str) -> None:
    payload = {"q": query, "gl": "us", "hl": "en", "num": 10}
    response = await client.post(f"{url}/search", json=payload, headers={"X-API-KEY": _KEY})
    _check(response.status_code == 200 and query in str(response.json()["organic"]))


def _check(is_found: bool) -> None:
    if not is_found:
        raise RuntimeError("the search failed; a failed one must not count as a fast one")


_OPENERS = {"hub": _through_hub, "kept": _with_one_client, "each": _with_a_client_each}


# --- outside ------------------------------------------------------------------------------------------------------


def measure_searches(searches: int, rounds: int) -> tuple[dict[str, list[Json]], bool]:
    """Return the results of each round and variant, and whether connections had TLS.

    A round has wall_s and cpu_s of the client, connections and setup_s (of each) of the endpoint.
    """
    found: dict[str, list[Json]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        made = make_certificate(Path(folder))
        files = {"certificate": made.path, "key": made.key_path} if made else {}
        with Worker("benchmarks.common.search_endpoint:open_endpoint", {**files, "delay_s": HANDSHAKE_S}) as endpoint:
            url = f"http{'s' if made else ''}://127.0.0.1:{endpoint.ask({})['port']}"
            arguments = {"url": url, "certificate": made.path if made else None}
            workers = {
                variant: Worker("benchmarks.servers.searches:open_searcher", {"variant": variant, **arguments})
                for variant in VARIANTS
            }
            try:
                for number, variant in interleaved(VARIANTS, rounds):
                    # The warm-up is short. Its queries are not used again.
                    request = {"searches": searches if number else 2, "topic": f"round {number} {variant}"}
                    told = workers[variant].ask(request, within=_PATIENCE_S)
                    noted = endpoint.ask({})
                    _check(noted["requests"] == request["searches"])
                    if number > 0:
                        found[variant].append({**told, **noted})
            finally:
                for worker in workers.values():
                    worker.close()
    return dict(found), made is not None
