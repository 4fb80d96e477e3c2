"""The stage of these tests: a slot or a hub over servers made of functions, and callers that can be watched."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
from trio.testing import MockClock

from toolhub import Hub, Result, ServerSpec, parse_config
from toolhub.channel.memory import MemoryServer, text_result
from toolhub.limits.start_limiter import StartLimiter
from toolhub.model import Call, Json, SlotKey, ToolPolicy
from toolhub.sessions.pool import ChannelOpener
from toolhub.sessions.slot import Slot

# No wait on these stages takes longer than milliseconds; running into this is a failure, never slowness.
WAIT_TIMEOUT_S = 5.0


def virtual_time() -> tuple[str, dict[str, Any]]:
    """The anyio backend whose clock jumps to the next deadline as soon as every task is blocked."""
    return "trio", {"clock": MockClock(autojump_threshold=0)}


async def echo(arguments: Mapping[str, Any]) -> Json:
    """A tool that answers at once."""
    return text_result(str(arguments.get("text", "")))


class Pausing:
    """A tool that answers when `go` is set; `inside` counts the calls that wait in it."""

    def __init__(self) -> None:
        self.inside = 0
        self.entered = 0
        self.go = anyio.Event()

    async def __call__(self, arguments: Mapping[str, Any]) -> Json:
        self.inside += 1
        self.entered += 1
        try:
            await self.go.wait()
        finally:
            self.inside -= 1
        return text_result("done")


def a_spec(name: str = "memory", **keys: Any) -> ServerSpec:
    return parse_config({"servers": {name: {"command": "unused"} | keys}}).servers[name]


def a_call(tool: str = "echo", *, policy: ToolPolicy | None = None, **fields: Any) -> Call:
    return Call("c1", "t1", "memory", tool, {}, math.inf, 1.0, policy or ToolPolicy(), **fields)


@asynccontextmanager
async def open_slot(server: MemoryServer, **keys: Any) -> AsyncIterator[Slot]:
    """A slot that starts `server`; leaving ends whatever still runs in it."""
    async with anyio.create_task_group() as owners:
        key = SlotKey("memory", "t1", "")
        starts = StartLimiter(4)
        yield Slot(key, a_spec(**keys), open_channel=server.open, owners=owners, starts=starts)
        owners.cancel_scope.cancel()


async def call(slot: Slot, tool: str = "echo") -> Result:
    """One call in a session of the slot, as a task makes it."""
    async with slot.checkout() as session:
        return await session.call(a_call(tool))


def a_hub(server: MemoryServer | ChannelOpener, *, limits: Any = None, **servers: Json) -> Hub:
    """A hub whose every server is `server`; without `servers` it has one of them, named `memory`."""
    named = {name: {"command": "unused"} | keys for name, keys in (servers or {"memory": {}}).items()}
    config = parse_config({"servers": named} | ({"limits": limits} if limits else {}))
    return Hub(config, open_channel=server.open if isinstance(server, MemoryServer) else server)
