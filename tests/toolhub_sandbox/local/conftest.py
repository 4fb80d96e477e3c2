"""One running `Sandboxes` per module, and a fresh sandbox per test: they cost milliseconds."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from toolhub_sandbox import OwnerSandboxes, Sandbox, Sandboxes

from tests.toolhub_sandbox.local.sandbox_stage import patience, settings


@pytest.fixture(scope="module")
def anyio_backend() -> object:
    """As the hub runs in production; `test_sandbox_loops.py` runs the essentials on the others, too."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
async def sandboxes(anyio_backend: object) -> AsyncIterator[Sandboxes]:
    async with Sandboxes(settings()) as sandboxes:
        yield sandboxes


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What is the folder for temporary files in a module that asks for it; any account may pass through it."""
    tmp_path_factory.getbasetemp()  # or pytest would make its own folder in ours
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="toolhub-test-") as name,
        pytest.MonkeyPatch.context() as patch,
    ):
        os.chmod(name, 0o711)
        patch.setattr(tempfile, "tempdir", name)
        yield Path(name)


@pytest.fixture
async def scope(sandboxes: Sandboxes) -> AsyncIterator[OwnerSandboxes]:
    scope = sandboxes.for_owner("test")
    yield scope
    with patience():
        await scope.aclose()


@pytest.fixture
async def sandbox(scope: OwnerSandboxes) -> Sandbox:
    with patience():
        return await scope.create()
