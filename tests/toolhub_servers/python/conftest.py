"""Real sandboxes for the tests of tool-python: one `Sandboxes` per module, a task of its own for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from toolhub_sandbox import OwnerSandboxes, Sandboxes

from toolhub.config import SandboxSettings

SETTINGS = SandboxSettings.model_validate(
    {
        "max_per_task": 3,
        "profiles": {
            "hasty": {"exec_timeout_s": 1, "command_timeout_s": 1},
            "small": {"file_bytes": 1000},
            "online": {"network": "host", "env": {"no_proxy": "*"}},
        },
    }
)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def sandboxes(anyio_backend: object) -> AsyncIterator[Sandboxes]:
    async with Sandboxes(SETTINGS) as sandboxes:
        yield sandboxes


@pytest.fixture
async def scope(sandboxes: Sandboxes) -> AsyncIterator[OwnerSandboxes]:
    scope = sandboxes.for_owner("task")
    yield scope
    with anyio.fail_after(20):
        await scope.aclose()
