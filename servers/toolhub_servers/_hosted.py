"""What a server has in common with others: lent by the hub that runs it, or opened by itself when it runs alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from toolhub.commons import Commons, open_commons
from toolhub.hosting import Host


class Lobby:
    """Where a server's tools find the commons while it runs. Give `lifespan` to the MCPServer."""

    def __init__(self, host: Host | None) -> None:
        self.owner = host.owner if host is not None else "server"
        """The task's id, "hub" for a server that all tasks share, "server" for one that runs alone."""
        self._lent = host.commons if host is not None else None
        self._commons = self._lent

    @property
    def commons(self) -> Commons:
        if self._commons is None:
            raise RuntimeError("the server is not running")
        return self._commons

    @asynccontextmanager
    async def lifespan(self, _server: Any) -> AsyncIterator[None]:
        """Keep a commons of its own for as long as the server runs, unless the hub lends one."""
        if self._lent is not None:
            yield
            return
        async with open_commons() as commons:
            self._commons = commons
            try:
                yield
            finally:
                self._commons = None
