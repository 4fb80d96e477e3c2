"""Starts are bounded, and one that only waits does not keep others from starting."""

from __future__ import annotations

import anyio
import pytest

from toolhub.limits.start_limiter import START_HOLD_TIMEOUT_S, StartLimiter

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


async def test_a_place_is_free_again_when_the_start_is_done():
    starts = StartLimiter(1)
    async with anyio.create_task_group() as owners:
        async with starts.place(owners):
            assert starts.in_use == 1
        assert starts.in_use == 0
        owners.cancel_scope.cancel()


async def test_a_start_that_never_ends_gives_its_place_to_the_next():
    starts = StartLimiter(1)
    async with anyio.create_task_group() as owners:

        async def stuck() -> None:
            async with starts.place(owners):
                await anyio.sleep_forever()

        owners.start_soon(stuck)
        await anyio.wait_all_tasks_blocked()
        before = anyio.current_time()
        async with starts.place(owners):
            assert anyio.current_time() - before == pytest.approx(START_HOLD_TIMEOUT_S)
            assert starts.in_use == 1
        owners.cancel_scope.cancel()
    assert starts.in_use == 0


async def test_a_start_that_fails_raises_its_own_error_and_gives_its_place_back():
    starts = StartLimiter(1)
    async with anyio.create_task_group() as owners:
        with pytest.raises(ValueError, match="broken"):
            async with starts.place(owners):
                raise ValueError("broken")
        assert starts.in_use == 0
        owners.cancel_scope.cancel()


async def test_a_cancelled_waiter_leaves_no_place_behind():
    starts = StartLimiter(1)
    async with anyio.create_task_group() as owners:
        async with starts.place(owners):
            with anyio.move_on_after(1):
                async with starts.place(owners):
                    raise AssertionError("there was no place")
        assert starts.in_use == 0
        owners.cancel_scope.cancel()
