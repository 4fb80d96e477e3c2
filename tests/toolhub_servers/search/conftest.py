"""What the tests of the search servers share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import anyio
import pytest
import stamina

from tests.toolhub_servers.search.search_standins import StandIn, exa, searxng, serper, standing_in, tencent


@pytest.fixture(autouse=True)
def no_backoff() -> Iterator[None]:
    """Tries follow each other at once; how many there are stays as it is."""
    with stamina.set_testing(True, attempts=100, cap=True):
        yield


@pytest.fixture
async def google() -> AsyncIterator[StandIn]:
    with anyio.fail_after(60):
        async with standing_in(serper) as service:
            yield service


@pytest.fixture
async def instance() -> AsyncIterator[StandIn]:
    with anyio.fail_after(60):
        async with standing_in(searxng) as service:
            yield service


@pytest.fixture
async def neural() -> AsyncIterator[StandIn]:
    with anyio.fail_after(60):
        async with standing_in(exa) as service:
            yield service


@pytest.fixture
async def cloud() -> AsyncIterator[StandIn]:
    with anyio.fail_after(60):
        async with standing_in(tencent) as service:
            yield service
