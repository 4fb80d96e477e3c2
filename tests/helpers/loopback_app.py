"""An ASGI application on a loopback port, in the event loop of the test."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import uvicorn

PATIENCE_S = 60.0


class _LoopbackServer(uvicorn.Server):
    """Leaves the signals to pytest."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve_app(app: Any, **options: Any) -> AsyncIterator[str]:
    """Serve the application while the block runs. Yield its address. options: of `uvicorn.Config`."""
    # Named as TCP, or asyncio does not switch off its delays.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        chosen: dict[str, Any] = {"log_level": "error", "lifespan": "off", "timeout_graceful_shutdown": 1} | options
        server, ended = _LoopbackServer(uvicorn.Config(app, **chosen)), anyio.Event()

        async def serve() -> None:
            await server.serve(sockets=[listener])
            ended.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                with anyio.CancelScope(shield=True), anyio.move_on_after(PATIENCE_S):
                    await ended.wait()
                tasks.cancel_scope.cancel()
