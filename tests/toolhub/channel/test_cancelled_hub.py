"""Cancelling a hub must not make its end slower than leaving it."""

from __future__ import annotations

import anyio
import pytest
from real_processes import HubFactory, fixture

from toolhub.channel.base import ChannelClosed
from toolhub.channel.builtin import open_builtin
from toolhub.config import parse_server

pytestmark = pytest.mark.anyio


async def test_a_cancelled_hub_hears_that_its_servers_ended_and_does_not_run_out_the_stop_ladder(
    hubs: HubFactory,
) -> None:
    spec = fixture("echo", stop_timeout_s=60)  # the ladder would take two minutes and more
    with anyio.fail_after(30):
        with anyio.CancelScope() as scope:
            async with hubs(spec) as hub, hub.task() as task:
                await task.call("echo", "pid")
                scope.cancel()
                await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_call_on_a_conversation_that_has_ended_says_that_it_was_not_sent() -> None:
    spec = parse_server("clock", {"builtin": "clock"})
    async with open_builtin(spec) as channel:
        pass
    with pytest.raises(ChannelClosed) as caught:
        await channel.request("tools/call", {"name": "get_current_time", "arguments": {}})
    assert caught.value.sent == "no"
