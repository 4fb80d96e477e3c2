"""The stand-in of the services: one for each file, as new for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from toolhub_servers.models import api as _model_api

from tests.toolhub_servers.models.media_standins import Service, serve_standin


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def running_service() -> AsyncIterator[Service]:
    async with serve_standin() as service:
        yield service


@pytest.fixture
def service(running_service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    # One more try shows all that many do, and takes a quarter of a second.
    monkeypatch.setattr(_model_api, "RETRIES", 1)
    running_service.forget()
    yield running_service
    running_service.forget()
