"""The limits of connections in a config hold: how many there are, how many are kept, and for how long."""

from __future__ import annotations

import anyio
import pytest
from web_stage import PATIENCE_S, Asked, http, open_client, open_origin, script

pytestmark = pytest.mark.anyio


async def test_there_are_never_more_connections_than_configured() -> None:
    release = anyio.Event()

    async def held(asked: Asked) -> bytes:
        await release.wait()
        return http(body=b"held")

    with anyio.fail_after(PATIENCE_S):
        async with (
            open_origin(held) as first,
            open_origin(script(http(body=b"free"))) as second,
            open_client(first, second, connections=1) as web,
            anyio.create_task_group() as asking,
        ):
            asking.start_soon(web.get, first.url())
            await anyio.wait_all_tasks_blocked()
            assert first.at_once == 1
            asking.start_soon(web.get, second.url())
            await anyio.wait_all_tasks_blocked()
            assert second.connections == 0
            release.set()
        assert len(second.asked) == 1


async def test_no_more_idle_connections_are_kept_than_configured() -> None:
    everybody = anyio.Event()

    async def together(asked: Asked) -> bytes:
        if asked.connection == 3:
            everybody.set()
        await everybody.wait()
        return http(body=b"hi")

    with anyio.fail_after(PATIENCE_S):
        async with open_origin(together) as origin, open_client(origin, keepalive=1) as web:
            async with anyio.create_task_group() as asking:
                for _ in range(3):
                    asking.start_soon(web.get, origin.url())
            assert origin.connections == 3
            assert web.statistics().connections_open == 1


async def test_a_connection_that_was_idle_for_too_long_is_not_used_again() -> None:
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(http(body=b"hi"))) as origin:
            async with open_client(origin, keepalive_s=1e-9) as web:  # over before the next request can begin
                for _ in range(3):
                    await web.get(origin.url())
            assert origin.connections == 3


async def test_tries_that_found_nobody_do_not_count_as_connections_used_again() -> None:
    with anyio.fail_after(PATIENCE_S):
        async with open_origin(script(http())) as origin:
            pass
        async with open_client(origin, retries=0) as web:
            with pytest.raises(Exception, match="no connection to"):
                await web.get(origin.url())
            assert web.statistics().reused_share == 0
