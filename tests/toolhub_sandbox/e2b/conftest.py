"""The stand-in service, the SDK pointed at it, a backend, and a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from toolhub_sandbox.e2b import E2BBackend, E2BSandbox, open_e2b

from tests.toolhub_sandbox.e2b.standin import KEY, StandIn, serve_standin
from tests.toolhub_sandbox.e2b.standin_stage import patience, profile, settings


@pytest.fixture
def anyio_backend() -> str:
    """The SDK runs on asyncio only."""
    return "asyncio"


@pytest.fixture
async def service(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StandIn]:
    async with serve_standin() as service:
        monkeypatch.setenv("E2B_API_URL", service.url)
        monkeypatch.setenv("E2B_SANDBOX_URL", service.url)
        monkeypatch.setenv("E2B_API_KEY", KEY)
        monkeypatch.delenv("E2B_DEBUG", raising=False)
        yield service


@pytest.fixture
async def backend(service: StandIn) -> AsyncIterator[E2BBackend]:
    async with open_e2b(settings()) as backend:
        yield backend


@pytest.fixture
async def sandbox(backend: E2BBackend) -> E2BSandbox:
    with patience():
        return await backend.create("bare", profile())
