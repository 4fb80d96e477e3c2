"""The door as `toolhub serve` holds it: everything it is made of, opened and closed together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from prometheus_client.core import Metric

from toolhub.config.llm import LlmSettings
from toolhub_agent.door.app import App
from toolhub_agent.door.exchange import Exchange
from toolhub_agent.door.registry import Registry
from toolhub_agent.door.statistics import Counts, families
from toolhub_agent.kv_hints.hinter import Hinter, open_hints
from toolhub_agent.llm.endpoint_pool import EndpointPool, open_endpoint_pool

if TYPE_CHECKING:
    from toolhub import Hub

PATH = "/llm"


class LlmDoor:
    """A `toolhub.extensions.Frontend`."""

    path = PATH

    def __init__(self, fleet: EndpointPool, hints: Hinter, registry: Registry, settings: LlmSettings) -> None:
        self._fleet = fleet
        self._hints = hints
        self._registry = registry
        self._counts = Counts()
        self._exchange = Exchange(fleet, settings, hints, self._counts)
        self.app = App(self._exchange, registry, self._counts)

    def __repr__(self) -> str:
        return f"<LlmDoor {self.app!r}>"

    async def aclose(self) -> None:
        await self._exchange.aclose()

    def announcement(self) -> str:
        return "LLM door"

    def collect(self) -> Iterator[Metric]:
        return families(self._counts, self._fleet.statistics(), self._hints.statistics(), len(self._registry))


@asynccontextmanager
async def open_frontend(hub: Hub, settings: LlmSettings) -> AsyncIterator[LlmDoor]:
    """Open the door of a running hub. Until the first request it sends nothing and never wakes up."""
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(open_endpoint_pool(settings))
        hints = await stack.enter_async_context(
            open_hints(
                settings.hints,
                engine=settings.engine,
                http=fleet.client,
                headers_of=lambda session: registry.headers_of(session),
                load_of=fleet.load,
            )
        )
        registry = Registry(hub, hints, forget=fleet.endpoints.forget)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(registry.run, name="conversations of the LLM door")
        for observer in (hints.durations, registry):
            hub.observers.append(observer)
            stack.callback(hub.observers.remove, observer)
        door = LlmDoor(fleet, hints, registry, settings)
        stack.push_async_callback(door.aclose)
        yield door
