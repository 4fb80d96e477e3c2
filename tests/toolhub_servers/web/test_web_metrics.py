"""What builtin servers share is counted in the hub's metrics."""

from __future__ import annotations

import anyio
import pytest
from prometheus_client import CollectorRegistry
from toolhub_servers.web.cache import open_cache
from toolhub_servers.web.client import open_web
from toolhub_servers.web.settings import WebSettings
from web_stage import PATIENCE_S, http, open_origin, script

from toolhub import Hub
from toolhub.serve.metrics import HubCollector

pytestmark = pytest.mark.anyio


async def test_connections_and_cached_answers_are_in_the_metrics_by_thing():
    with anyio.fail_after(PATIENCE_S):
        async with Hub() as hub, open_origin(script(http())) as origin:
            registry = CollectorRegistry()
            registry.register(HubCollector(hub, []))
            web = await open_web(hub.resources, "serper", WebSettings(allow_private=[f"127.0.0.1:{origin.port}"]))
            memo = await hub.resources.get_or_open("memo serper", open_cache)
            for _ in range(2):
                await memo.get("q", lambda: web.get(origin.url()))
            name, _ = hub.resources.statistics()

            def count(thing: str, of: str) -> float | None:
                return registry.get_sample_value("toolhub_shared", {"thing": thing, "count": of})

            assert name.startswith("http serper ")
            assert (count(name, "connections_opened"), count(name, "requests")) == (1, 1)
            assert (count("memo serper", "hits"), count("memo serper", "misses")) == (1, 1)
