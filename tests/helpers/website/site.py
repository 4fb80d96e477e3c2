"""A website on loopback for tests: pages of every kind, stand-ins for services, and a record of who asked for what.

`from website.site import site` gives the fixture; `open_site()` is the same without pytest.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from website import pages, standins

# Starting and ending take some milliseconds; only a broken machine takes this long.
PATIENCE_S = 60.0
_RUNNING = pytest.StashKey["Site"]()


@dataclass(frozen=True)
class SeenPageRequest:
    """One request. target: path and query; headers: names in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Site:
    """A running website. Everything may be read from any thread."""

    def __init__(self, port: int) -> None:
        self.authority = f"127.0.0.1:{port}"
        self.url = f"http://{self.authority}"
        self._released = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.reset()

    def reset(self) -> None:
        """Let go of everything and begin anew, at the same address."""
        self.release()
        self.seen: list[SeenPageRequest] = []
        self.jina = standins.Script(standins.jina_page)
        self.chat = standins.Script(standins.usual_completion)
        self.sent_bytes = 0
        """Of the endless body."""
        self.visits: dict[str, int] = {}
        self._waiting = threading.Semaphore(0)
        self._left = threading.Semaphore(0)
        self._released = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Site {self.authority}, {len(self.seen)} requests>"

    @property
    def jina_url(self) -> str:
        return f"{self.url}/jina"

    @property
    def chat_url(self) -> str:
        return f"{self.url}/v1/chat/completions"

    def asked(self, path: str) -> list[SeenPageRequest]:
        """The requests whose target begins with that."""
        return [seen for seen in self.seen if seen.target.startswith(path)]

    def release(self) -> None:
        """Let the slow answers go, those to come included."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._released.set)

    def wait_slow(self) -> None:
        """Block until one more slow answer is being waited for."""
        assert self._waiting.acquire(timeout=PATIENCE_S)

    def wait_left(self) -> None:
        """Block until one more of those who waited for a slow answer has gone away without it."""
        assert self._left.acquire(timeout=PATIENCE_S)

    async def until_released(self, request: Request) -> None:
        """For handlers: wait until `release()` or until nobody waits for the answer any more."""
        self._waiting.release()
        release = asyncio.ensure_future(self._released.wait())
        leaving = asyncio.ensure_future(_disconnected(request))
        done, pending = await asyncio.wait({release, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if leaving in done:
            self._left.release()
        for task in pending:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def record(self, request: Request) -> bytes:
        body = await request.body()
        raw = request.scope["raw_path"].decode("ascii", "replace")
        query = request.scope["query_string"].decode("ascii", "replace")
        target = f"{raw}?{query}" if query else raw
        self.seen.append(SeenPageRequest(request.method, target, dict(request.headers), body))
        return body

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called in the loop that serves."""
        self._loop = loop


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


Handler = Callable[[Site, Request], Awaitable[Response]]


def _app(site: Site) -> Starlette:
    def route(path: str, handler: Handler) -> Route:
        async def handle(request: Request) -> Response:
            await site.record(request)
            return await handler(site, request)

        return Route(path, handle, methods=["GET", "HEAD", "POST"])

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        site.bind(asyncio.get_running_loop())
        yield

    return Starlette(routes=[route(path, handler) for path, handler in pages.HANDLERS.items()], lifespan=lifespan)


@contextmanager
def open_site() -> Iterator[Site]:
    """A website that serves, in a thread of its own, as long as the block lasts."""
    listener = socket.create_server(("127.0.0.1", 0))
    site = Site(listener.getsockname()[1])
    config = uvicorn.Config(_app(site), log_level="error", lifespan="on", timeout_graceful_shutdown=1, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="website")
    thread.start()
    try:
        # The listener takes connections from the start; what is asked before the loop runs is answered then.
        yield site
    finally:
        site.release()
        server.should_exit = True
        thread.join(PATIENCE_S)
        listener.close()
    assert not thread.is_alive()


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A website as new. The tests of a module share its address, so caches must not outlive a test."""
    module = request.node.getparent(pytest.Module)
    running = module.stash.get(_RUNNING, None)
    if running is None:
        lasting = contextlib.ExitStack()
        running = module.stash[_RUNNING] = lasting.enter_context(open_site())
        module.addfinalizer(lasting.close)
    running.reset()
    yield running
    running.release()
