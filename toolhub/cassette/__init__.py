"""Cassettes: recordings of the tool exchanges of tasks, and the hub's replay of them without any server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from toolhub.layers import Layer
from toolhub.model import ClientProfile, Json, ServerInfo

Kind = Literal["call", "request"]
"""A tool call, or another request of MCP, whose method is the `tool`."""
KINDS: tuple[Kind, ...] = ("call", "request")


class RecordedServer(Protocol):
    """What a recording needs of a task's server."""

    async def ask_for_tools(self, profile: ClientProfile) -> None:
        """Have the server list its tools if that was not done. Raises what `tools()` raises."""
        ...

    def may_change(self, tool: str) -> bool:
        """Whether a tool may change what the server answers later."""
        ...

    def description(self) -> tuple[ServerInfo | None, list[Json] | None]:
        """Return what the server said about itself and its tools, so far as it is known."""
        ...


class TaskCassette(Protocol):
    """The recording or the replay of one task. is_live: servers answer the calls."""

    @property
    def is_live(self) -> bool: ...

    def layer(self, kind: Kind, servers: Mapping[str, RecordedServer], bounded: Layer) -> Layer:
        """Return the layer for a kind of exchanges. bounded: the layer below, with the deadline and the task's end."""
        ...

    def describe(self, name: str, server: RecordedServer) -> None:
        """Take what is known about a server."""
        ...
