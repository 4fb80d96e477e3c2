"""The resources that servers share: the hub's, or the server's own when it runs alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from toolhub.extensions import BuiltinContext
from toolhub.shared_resources import SharedResources, open_shared_resources


class ServerContext:
    """The owner and the shared resources of a server while it runs. Give `lifespan` to the MCPServer."""

    def __init__(self, context: BuiltinContext | None) -> None:
        self.owner = context.owner if context is not None else "server"
        """The task's id, "hub" for a server that all tasks share, "server" for one that runs alone."""
        self._lent = context.resources if context is not None else None
        self._resources = self._lent

    @property
    def resources(self) -> SharedResources:
        if self._resources is None:
            raise RuntimeError("the server is not running")
        return self._resources

    @asynccontextmanager
    async def lifespan(self, _server: Any) -> AsyncIterator[None]:
        """Open resources of the server's own while it runs, unless it has the hub's."""
        if self._lent is not None:
            yield
            return
        async with open_shared_resources() as resources:
            self._resources = resources
            try:
                yield
            finally:
                self._resources = None
