"""Clients that misbehave.

    python -m benchmarks.soak.clients vanish|fork ADDRESS KEY

Prints a line when it is ready. `vanish` waits to be killed with calls in flight; `fork` forks, and prints `both` when
the parent and the child have both been answered since.
"""

from __future__ import annotations

import os
import sys

import anyio

import toolhub

_LEASE_S = 5.0
_IN_FLIGHT = 20


async def vanish(address: str, key: str) -> None:
    """Call without an end."""
    async with toolhub.connect(address) as hub, hub.task(key, lease=_LEASE_S) as task:

        async def call(number: int) -> None:
            for turn in range(10**6):
                await task.call("exec", "work", {"key": f"{key}-{number}-{turn}"})

        async with anyio.create_task_group() as calls:
            for number in range(_IN_FLIGHT):
                calls.start_soon(call, number)
            print("ready", flush=True)


def fork(address: str, key: str) -> None:
    """Use the same task on both sides of a fork."""
    hub = toolhub.connect(address)
    task = anyio.run(lambda: hub.open_task(key, lease=_LEASE_S))

    async def call(suffix: str) -> bool:
        result = await task.call("exec", "work", {"key": key + suffix})
        return bool(result.text == key + suffix)

    assert anyio.run(call, "-before")
    print("ready", flush=True)
    child = os.fork()
    if child == 0:
        os._exit(0 if anyio.run(call, "-child") else 1)
    is_answered = anyio.run(call, "-parent")
    _, status = os.waitpid(child, 0)
    anyio.run(task.aclose)
    print("both" if is_answered and status == 0 else "not both", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "vanish":
        anyio.run(vanish, sys.argv[2], sys.argv[3])
    else:
        fork(sys.argv[2], sys.argv[3])
