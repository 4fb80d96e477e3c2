"""What every foreign server must stand: its tasks apart, kill -9 in the middle, and an end that leaves nothing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import anyio
from real_processes import HubFactory, Process, below, eventually, pid_of, shim_of

from toolhub import HubTask, ServerSpec

UseFn = Callable[[HubTask], Coroutine[Any, Any, None]]


async def stands_a_task_and_a_kill(hubs: HubFactory, spec: ServerSpec, tools: set[str], use: UseFn) -> None:
    """List tools, use the server, kill everything of it, use it again, and find nothing after the task."""
    with anyio.fail_after(30):
        async with hubs(spec) as hub:
            async with hub.task("t") as task:
                assert tools <= {tool.name for tool in await task.tools(spec.name)}
                await use(task)
                killed = tree_of(task, spec.name)
                for process in reversed(killed):
                    process.kill_if_alive()  # npx and its shell end when their child has ended
                await eventually(lambda: not any(process.is_alive for process in killed))
                await eventually(lambda: task.statistics().slots[0].deaths == 1)
                await use(task)
                left = tree_of(task, spec.name)
            assert not any(process.is_alive for process in left)


async def keeps_three_tasks_apart(hubs: HubFactory, spec: ServerSpec, use: UseFn) -> None:
    """Three tasks at once have three processes."""
    with anyio.fail_after(30):
        async with hubs(spec) as hub, hub.task("a") as a, hub.task("b") as b, hub.task("c") as c:
            async with anyio.create_task_group() as tasks:
                for task in (a, b, c):
                    tasks.start_soon(use, task)
            trees = [tree_of(task, spec.name) for task in (a, b, c)]
            assert len({tree[0].pid for tree in trees}) == 3
            await hub.close_task("a")
            assert not any(process.is_alive for process in trees[0])
            await use(b)
            assert tree_of(b, spec.name) == trees[1]
        assert not any(process.is_alive for tree in trees for process in tree)


def tree_of(task: HubTask, server: str) -> list[Process]:
    """Every process of a server that is up, the one the hub started first."""
    first = Process.of(pid_of(task, server))
    return [first, *(process for process in below(shim_of(first.pid).pid) if process != first)]
