"""A hub with a villain and a neighbour. After each test the neighbour must be as it was, and the hub, too."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from real_processes import eventually
from toolhub_sandbox import Sandbox, Sandboxes

from tests.toolhub_sandbox.hostile.hostile_stage import (
    HostileStage,
    assert_well,
    cheap_for_the_hub,
    patience,
    processes,
    settings,
)

# What one test may leave in the hub's memory and descriptors: nothing but the allocator's slack.
_LEFT_BYTES = 64 << 20


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def sandboxes(anyio_backend: object) -> AsyncIterator[Sandboxes]:
    async with Sandboxes(settings()) as sandboxes:
        yield sandboxes


@pytest.fixture(scope="module")
async def neighbour(sandboxes: Sandboxes) -> Sandbox:
    with patience():
        neighbour = await sandboxes.for_owner("neighbour").create()
        await neighbour.exec_code("kept = 41")
        await neighbour.put("mine.txt", b"mine")
        await assert_well(neighbour)
    return neighbour


@pytest.fixture
async def stage(sandboxes: Sandboxes, neighbour: Sandbox) -> AsyncIterator[HostileStage]:
    before = frozenset(processes())
    opened = len(os.listdir("/proc/self/fd"))
    scope = sandboxes.for_owner("villain")
    with patience():
        box = await scope.create()
    with cheap_for_the_hub(_LEFT_BYTES):
        yield HostileStage(sandboxes, scope, box, neighbour, before)
        with patience():
            await scope.aclose()
    await assert_well(neighbour)
    await eventually(lambda: not processes() - before)
    assert before <= processes()  # the zygote and the neighbour
    assert len(os.listdir("/proc/self/fd")) <= opened + 2  # threads of the event loop's may have begun
