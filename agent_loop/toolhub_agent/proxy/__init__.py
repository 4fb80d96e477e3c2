"""The LLM proxy: `toolhub serve` as an OpenAI-compatible reverse proxy before the model servers (`llm:` in the config).

    OpenAI(base_url="http://127.0.0.1:8765/llm/v1", api_key=TOOLHUB_TOKEN)

The hub then sees both sides of an agent that it does not run: what the model was asked, and which tools run for it. The
agent gets session affinity, back-pressure and prefetch; it changes one address only. The proxy writes nothing of a
conversation to disk or logs. In memory it keeps hashes, and the latest prompt while tools run for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolhub import Hub
    from toolhub.extensions import Frontend

__all__ = ["open_llm_proxy"]


@asynccontextmanager
async def open_llm_proxy(hub: Hub) -> AsyncIterator[Frontend | None]:
    """Run the proxy of a hub while the block runs. Yield None if the hub's config names no model servers."""
    settings = hub.config.llm
    if settings is None:
        yield None
        return
    from toolhub_agent.proxy.app import open_proxy  # a hub without model servers need not load any of this

    async with open_proxy(hub, settings) as proxy:
        yield proxy
