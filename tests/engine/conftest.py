"""Fixtures of the tests with a real inference engine; `make test-engine` installs it and runs them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import openai
import pytest
from anyio.from_thread import start_blocking_portal

from testbed.engine.server import EngineServer, open_engine


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """One engine for all tests that need no options; it takes half a minute to start."""
    log = tmp_path_factory.mktemp("engine") / "log"
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(open_engine(log=log)) as running:
        yield running


@pytest.fixture
async def client(engine: EngineServer) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of that engine, asking nothing of the machine's proxies."""
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with openai.AsyncOpenAI(base_url=engine.openai_url, api_key="none", http_client=http) as client:
        yield client
