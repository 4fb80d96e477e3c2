"""Builtin servers: our own MCP servers inside the hub's process. A call runs in a task beside the caller's."""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
from mcp.server import MCPServer, Server
from mcp.server.connection import Connection
from mcp.server.runner import serve_connection

from toolhub.channel.base import ExitInfo, OpenFailed
from toolhub.channel.jsonrpc.in_process import InProcessTransport, in_process_pair
from toolhub.channel.jsonrpc.peer import Peer
from toolhub.channel.mcp import McpChannel, conversation
from toolhub.config import ServerSpec
from toolhub.extensions import BuiltinContext, find_builtin
from toolhub.model import OWN_PROFILE, ClientProfile
from toolhub.owned import unwrapped


def load_server(spec: ServerSpec, context: BuiltinContext | None = None) -> Server[Any]:
    """Import the factory and call it with the spec's options, and with `context` if it has that parameter.

    Raises OpenFailed when it cannot be imported, refuses its options, or returns something that is not a server.
    """
    try:
        module, factory = find_builtin(spec.builtin or "")
    except LookupError as exc:
        raise OpenFailed(f"builtin {spec.builtin!r} could not be created: {exc}") from exc
    try:
        with _root_logger_untouched():
            create = getattr(importlib.import_module(module), factory)
            takes_context = context is not None and "context" in inspect.signature(create).parameters
            server = create(**spec.options, **({"context": context} if takes_context else {}))
    except Exception as exc:
        raise OpenFailed(f"builtin {spec.builtin!r} could not be created: {type(exc).__name__}: {exc}") from exc
    if isinstance(server, MCPServer):
        return server._lowlevel_server  # the SDK (2.3) has no public name for it yet
    if isinstance(server, Server):
        return server
    raise OpenFailed(f"builtin {spec.builtin!r} returned {type(server).__name__}, not an MCP server")


@contextmanager
def _root_logger_untouched() -> Iterator[None]:
    """Keep the SDK's MCPServer from configuring the root logger, which only the program may do."""
    root, placeholder = logging.getLogger(), logging.NullHandler()
    root.addHandler(placeholder)
    try:
        yield
    finally:
        root.removeHandler(placeholder)


@asynccontextmanager
async def open_builtin(
    spec: ServerSpec, context: BuiltinContext | None = None, profile: ClientProfile = OWN_PROFILE
) -> AsyncIterator[McpChannel]:
    """Run a server object in a task of this process; leaving ends it. Raises OpenFailed."""
    server = load_server(spec, context)
    death = ExitInfo()
    try:
        async with anyio.create_task_group() as tasks:
            client, served = in_process_pair()
            has_ended = anyio.Event()
            tasks.start_soon(_serve, server, served, has_ended)
            async with conversation(spec, Peer(client, client), lambda: death, profile) as channel:
                yield channel
            with anyio.move_on_after(spec.stop_timeout_s):
                await has_ended.wait()  # it sees the end of the conversation, and leaves its lifespan
            tasks.cancel_scope.cancel()
    except Exception as exc:
        death.cause = str(unwrapped(exc))
        raise unwrapped(exc) from exc


async def _serve(server: Server[Any], link: InProcessTransport, has_ended: anyio.Event) -> None:
    """Serve one conversation until it ends. It always begins with a handshake, whatever `protocol` the config says."""
    peer = Peer(link, link)
    try:
        async with server.lifespan(server) as state:
            await serve_connection(server, peer, connection=Connection.for_loop(peer), lifespan_state=state)
    finally:
        has_ended.set()
