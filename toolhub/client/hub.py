"""A hub that runs in another process."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio

from toolhub.client import blocking
from toolhub.client.address import Address
from toolhub.client.rollout import ROLLOUTS, RemoteRollout
from toolhub.client.task import MARGIN_S, RemoteTask
from toolhub.client.transport import Transport
from toolhub.model import Json

if TYPE_CHECKING:
    from toolhub.config import SpeculationMode  # takes 100 ms, and pydantic, which a client does without

_TASKS = "/v1/tasks"
# A trainer that dies leaves its rollouts for so long. While it lives they are renewed every 20 s.
_ROLLOUT_LEASE_S = 60.0


class RemoteHub:
    """A client of one hub, made by `toolhub.connect()`. `async with` closes it at the end; that is optional."""

    def __init__(self, address: Address, *, token: str | None, timeout: float | None) -> None:
        self.address = address
        self._timeout = timeout
        self._transport = Transport(address, token)

    def __repr__(self) -> str:
        return f"<RemoteHub {self.address}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    @asynccontextmanager
    async def task(
        self,
        task_id: str | None = None,
        *,
        run: str = "",
        labels: Mapping[str, str] | None = None,
        servers: Mapping[str, Mapping[str, Any] | None] | None = None,
        only_these: bool = False,
        lease: float | None = None,
        weight: float = 1.0,
        speculation: SpeculationMode | None = None,
    ) -> AsyncIterator[RemoteTask]:
        """Hold a task. Leaving the block ends every process of the task. Arguments as in `open_task()`."""
        task = await self.open_task(
            task_id,
            run=run,
            labels=labels,
            servers=servers,
            only_these=only_these,
            lease=lease,
            weight=weight,
            speculation=speculation,
        )
        try:
            yield task
        finally:
            with anyio.CancelScope(shield=True):  # aclose() has its own deadline
                await task.aclose()

    async def open_task(
        self,
        task_id: str | None = None,
        *,
        run: str = "",
        labels: Mapping[str, str] | None = None,
        servers: Mapping[str, Mapping[str, Any] | None] | None = None,
        only_these: bool = False,
        lease: float | None = None,
        weight: float = 1.0,
        speculation: SpeculationMode | None = None,
    ) -> RemoteTask:
        """Open a task. It lives until it is closed or garbage-collected, or until this process is silent for its lease.

        servers: by name, a config entry for a server of the task's own, or None for the hub's server with that name.
        only_these: leave out the hub's servers that `servers` does not name. lease: seconds; default: the hub's.
        weight: the task's share relative to the other tasks of its run. speculation: `none` for a task whose calls must
        not be foreseen; it can only lower the hub's `speculation.mode`. Raises ConfigError if the id is taken or a
        server's entry is invalid, Unauthorized, Overloaded, HubUnreachable.
        """
        body = _opening(task_id, run, labels, servers, only_these, lease) | {"weight": weight}
        body |= {"speculation": speculation} if speculation is not None else {}
        return self._opened(await self._transport.request("POST", _TASKS, body, bound=MARGIN_S))

    @asynccontextmanager
    async def rollout(
        self,
        *,
        run: str = "",
        labels: Mapping[str, str] | None = None,
        servers: Collection[str] | None = None,
        lease: float = _ROLLOUT_LEASE_S,
        weight: float = 1.0,
        idempotency_key: str | None = None,
    ) -> AsyncIterator[RemoteRollout]:
        """Hold a rollout: a task with a token for an agent that must reach nothing else, and a report of its calls.

        servers: names of the hub's servers; None: all. lease: seconds after which the rollout ends if this process has
        died. idempotency_key: default: a new one, so that a lost answer opens no second rollout; give your own if you
        repeat the opening yourself. Raises what `open_task()` raises.
        """
        body: Json = {"idempotency_key": idempotency_key or uuid.uuid4().hex, "run": run, "labels": dict(labels or {})}
        body |= {"servers": None if servers is None else list(servers), "lease_s": lease, "weight": weight}
        answer = await self._transport.request("POST", ROLLOUTS, body, bound=MARGIN_S, repeatable=True)
        rollout = RemoteRollout(self._transport, answer, timeout=self._timeout)
        try:
            yield rollout
        finally:
            with anyio.CancelScope(shield=True):  # aclose() has its own deadline
                await rollout.aclose()

    def open_task_blocking(
        self,
        task_id: str | None = None,
        *,
        run: str = "",
        servers: Mapping[str, Mapping[str, Any] | None] | None = None,
        only_these: bool = False,
        partial: bool = False,
        lease: float | None = None,
    ) -> RemoteTask:
        """`open_task()` for a thread without an event loop.

        partial: open the task without the servers that cannot be used. `RemoteTask.refused` has the reasons.
        """
        body = _opening(task_id, run, None, servers, only_these, lease) | {"partial": partial}
        token = self._transport.token
        answer = blocking.request(self.address, "POST", _TASKS, token=token, body=body, timeout=MARGIN_S)
        return self._opened(answer)

    def _opened(self, answer: Json) -> RemoteTask:
        return RemoteTask(self._transport, answer, timeout=self._timeout)

    def server_names_blocking(self) -> list[str]:
        """Return the names of the servers in the hub's config, for a thread without an event loop."""
        token = self._transport.token
        answer = blocking.request(self.address, "GET", "/v1/servers", token=token, timeout=MARGIN_S)
        return [server["name"] for server in answer["servers"]]

    async def statistics(self) -> Json:
        """Return all counters of the hub."""
        answer: Json = await self._transport.request("GET", "/v1/statistics", bound=MARGIN_S, repeatable=True)
        return answer

    async def aclose(self) -> None:
        """Close the idle connections. Idempotent. Tasks stay open, and the next request connects again."""
        self._transport.close()


def _opening(
    task_id: str | None,
    run: str,
    labels: Mapping[str, str] | None,
    servers: Mapping[str, Mapping[str, Any] | None] | None,
    only_these: bool,
    lease: float | None,
) -> Json:
    body: Json = {"id": task_id or f"task-{uuid.uuid4().hex[:12]}", "run": run, "labels": dict(labels or {})}
    body |= {"only_these": only_these}
    if servers is not None:
        body["servers"] = {name: None if spec is None else dict(spec) for name, spec in servers.items()}
    if lease is not None:
        body["lease_s"] = lease
    return body
