"""The stage of tests about equal calls: tasks with stacks of real layers over work that can be watched."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from in_memory_hub import a_spec

from toolhub.config import ServerSpec
from toolhub.layers import Handler, stack
from toolhub.layers.cache import Caches, cache
from toolhub.layers.coalesce import Coalescer, coalesce
from toolhub.layers.deadline import deadline
from toolhub.layers.retry import retry
from toolhub.limits.backoff import RetryBudget
from toolhub.model import Call, Result, ToolPolicy

READ = ToolPolicy(read_only=True)
SET = ToolPolicy(idempotent=True)
ACT = ToolPolicy()

_numbers = itertools.count(1)


def an_answer(text: str = "done") -> Result:
    return Result({"content": [{"type": "text", "text": text}], "isError": False})


class Work:
    """What is below the layers: counts executions, which wait for `go` and then fail as told or answer."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.calls: list[Call] = []
        self.running = self.most = self.cancelled = 0
        self.go = anyio.Event()
        self.may_end = anyio.Event()
        self.may_end.set()
        self.answer: Result | None = None

    async def __call__(self, call: Call) -> Result:
        self.calls.append(call)
        self.running += 1
        self.most = max(self.most, self.running)
        call.delivery.sent = "maybe"
        try:
            await self.go.wait()
        except BaseException:
            self.cancelled += 1
            with anyio.CancelScope(shield=True):
                await self.may_end.wait()
            raise
        finally:
            self.running -= 1
        if self.failures:
            raise self.failures.pop(0)
        return self.answer or an_answer()

    @property
    def runs(self) -> int:
        return len(self.calls)


@dataclass(eq=False)
class AServer:
    """One server as one owner uses it."""

    spec: ServerSpec = field(default_factory=lambda: a_spec(share="hub"))
    writes: int = 0

    @property
    def key(self) -> str:
        return f"{self.spec.name}:{self.spec.fingerprint()}"


class ATask:
    """One task: its stack of layers over `work`, and its own view of a server."""

    def __init__(
        self, coalescer: Coalescer, work: Handler, server: AServer | None = None, caches: Caches | None = None
    ):
        self.id = f"t{next(_numbers)}"
        self.retries = 0
        self.server = server or AServer()
        self.caches = (caches or Caches()).for_task()
        self.handle = stack(
            deadline(set()),
            cache(self.caches, lambda call: self.server),
            coalesce(coalescer, lambda call: self.server),
            retry(RetryBudget(), on_retry=self._count_retry),
        )(work)

    async def call(
        self,
        tool: str = "read",
        arguments: Mapping[str, Any] | None = None,
        *,
        policy: ToolPolicy = READ,
        timeout: float = 1000.0,
        **more: Any,
    ) -> Result:
        return await self.handle(self.a_call(tool, arguments, policy=policy, timeout=timeout, **more))

    def a_call(
        self,
        tool: str = "read",
        arguments: Mapping[str, Any] | None = None,
        *,
        policy: ToolPolicy = READ,
        timeout: float = 1000.0,
        **more: Any,
    ) -> Call:
        until = anyio.current_time() + timeout
        return Call(f"c{next(_numbers)}", self.id, "memory", tool, arguments or {}, until, timeout, policy, **more)

    def close(self) -> None:
        """What `HubTask.aclose()` does, as far as these layers hear of it."""
        self.caches.close()

    def _count_retry(self) -> None:
        self.retries += 1


@asynccontextmanager
async def open_coalescer() -> AsyncIterator[Coalescer]:
    """A coalescer in which nothing may be in flight at the end."""
    coalescer = Coalescer()
    yield coalescer
    await anyio.wait_all_tasks_blocked()
    assert coalescer.statistics().in_flight == 0
