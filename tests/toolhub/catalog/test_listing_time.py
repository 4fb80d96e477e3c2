"""A server that is up but never lists its tools costs only itself, and not for ever."""

from __future__ import annotations

import anyio
import pytest
from in_memory_hub import a_hub, virtual_time

from toolhub.channel.memory import MemoryChannel, MemoryServer
from toolhub.errors import CallTimeout
from toolhub.model import Json

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return virtual_time()


async def never(self: MemoryChannel) -> list[Json]:
    await anyio.sleep_forever()
    raise AssertionError


async def test_a_server_that_never_lists_its_tools_is_given_its_start_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryChannel, "list_tools", never)
    async with a_hub(MemoryServer(), memory={"start_timeout_s": 7}) as hub, hub.task() as task:
        before = anyio.current_time()
        with anyio.fail_after(60):
            error = (await task.tools_by_server())["memory"]
        assert isinstance(error, CallTimeout)
        assert (error.server, error.timeout, error.sent) == ("memory", 7, "maybe")
        assert anyio.current_time() - before == pytest.approx(7)
