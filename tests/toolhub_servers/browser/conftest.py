"""Fixtures of the tests of the browser server; the tests of a module share one Chromium, as the tasks of a hub do."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from testbed import third_party
from tests.toolhub_servers.browser.browser_site import Website, open_website
from tests.toolhub_servers.browser.browsing import Open, Task, open_task
from toolhub.shared_resources import SharedResources, open_shared_resources


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    if third_party.chromium() is None:
        is_needed = os.environ.get("CI") or os.environ.get("TOOLHUB_REQUIRE_BROWSER")
        (pytest.fail if is_needed else pytest.skip)("no Chromium")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def resources(anyio_backend: Any) -> AsyncIterator[SharedResources]:
    async with open_shared_resources() as resources:
        yield resources


@pytest.fixture(scope="module")
async def site(anyio_backend: Any) -> AsyncIterator[Website]:
    async with open_website() as site:
        yield site


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A folder for TMPDIR: pytest's own may be too long for the sockets that Chromium makes in it."""
    with tempfile.TemporaryDirectory(prefix="tb-", dir="/tmp") as folder:
        os.chmod(folder, 0o711)  # under root Chromium is another user
        yield Path(folder)


@pytest.fixture
def browser(resources: SharedResources, site: Website) -> Open:
    def open_(owner: str = "task", **options: Any) -> AbstractAsyncContextManager[Task]:
        return open_task(resources, site, owner, **options)

    return open_
