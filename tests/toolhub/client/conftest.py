"""Fixtures of the tests of the thin client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hub_process import HubProcess, echo_server, private_hub

import toolhub
from toolhub.client import RemoteHub, RemoteTask


@pytest.fixture(scope="module")
def hub_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """One hub for a file of tests."""
    with private_hub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture
def own_hub_process(tmp_path: Path) -> Iterator[HubProcess]:
    """A hub that the test may kill."""
    with private_hub(tmp_path) as hub:
        yield hub


@pytest.fixture
async def hub(anyio_backend: str, hub_process: HubProcess) -> AsyncIterator[RemoteHub]:
    async with toolhub.connect(hub_process.url) as hub:
        yield hub


@pytest.fixture
async def task(hub: RemoteHub) -> AsyncIterator[RemoteTask]:
    """A task with the server `echo`."""
    async with hub.task(servers={"echo": echo_server()}, only_these=True) as task:
        yield task
