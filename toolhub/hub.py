"""The hub: root of ownership. It owns the supervisor, the shared slots, the limits, and every task."""

from __future__ import annotations

import logging
import math
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import anyio.to_thread

from toolhub.cassette import TaskCassette
from toolhub.cassette.player import CassettePlayer, recorded_server
from toolhub.cassette.recorder import CassetteRecorder
from toolhub.catalog.answers import SavedAnswers
from toolhub.catalog.catalog import Catalog
from toolhub.catalog.store import CatalogStore
from toolhub.channel.base import Channel
from toolhub.channel.builtin import open_builtin
from toolhub.channel.http import open_http
from toolhub.channel.process import open_stdio
from toolhub.config import Config, ServerSpec, SpeculationMode
from toolhub.config.models import CassetteSettings, HubSettings
from toolhub.errors import ConfigError, HubClosed, Overloaded, StartError, TaskClosed
from toolhub.extensions import BuiltinContext, SandboxProvider, find_sandboxes
from toolhub.layers.cache import Caches, SharedResults
from toolhub.layers.coalesce import Coalescer
from toolhub.layers.result_store import ResultStore
from toolhub.layers.speculate import Speculation
from toolhub.layers.trace import CallCounts, Observer
from toolhub.limits.backoff import RetryBudget
from toolhub.limits.budget import Budget
from toolhub.limits.descriptors import raise_fd_limit, usable_descriptors
from toolhub.limits.limiter import ConcurrencyLimiter
from toolhub.limits.start_limiter import StartLimiter
from toolhub.model import ClientProfile, FairShareKey, HubStatistics, SandboxCounts
from toolhub.owned import Held, hold
from toolhub.sessions.events import ServerEvents
from toolhub.sessions.pool import ChannelOpener, HubResources, ServerLimiters, SessionPool
from toolhub.sessions.slot import Counters, Slot, idle_limit
from toolhub.shared_resources import SharedResources, open_shared_resources
from toolhub.spawn.exec import Spawner, open_spawner
from toolhub.spawn.journal import open_journal
from toolhub.spawn.launchers.resolver import Resolver
from toolhub.spawn.memory import memory_below
from toolhub.task import HubTask, new_task_id
from toolhub.task_ids import check_task_id

# How often leases and idle sessions are checked.
_HOUSEKEEPING_INTERVAL_S = 1.0
_IDLE_JITTER = 0.05
# How often memory is measured. Reading it for hundreds of processes takes a large part of a second in another thread.
_MEASURE_S = 5.0

logger = logging.getLogger(__name__)


class Hub:
    """`async with Hub(load_config("hub.yaml")) as hub: async with hub.task("t1") as task: ...`"""

    def __init__(self, config: Config | None = None, *, open_channel: ChannelOpener | None = None) -> None:
        """open_channel: how servers are reached; only for tests. The default knows every transport."""
        self.config = config or Config()
        self.observers: list[Observer] = []
        self.pauses: list[Callable[[str], str]] = []
        """Each says of a task's id for how long and why it is paused, or "". See `TaskStatistics.paused`."""
        self._tools_listeners: list[Callable[[str], None]] = []
        self.retries = 0
        self._started_at = time.time()
        self._counts = CallCounts()
        self._totals = Counters()
        self.events = ServerEvents()
        self._open_channel = open_channel
        self._tasks: dict[str, Held[HubTask]] = {}
        self._opening: dict[str, anyio.Event] = {}
        self._shared_servers: dict[str, SessionPool] = {}
        self._server_limiters = ServerLimiters(self.config.limits)
        self._stack = AsyncExitStack()
        self._owners: anyio.abc.TaskGroup | None = None
        self._closing = False
        self._own_context: BuiltinContext | None = None
        self._cassette: CassetteRecorder | CassettePlayer | None = None

    def __repr__(self) -> str:
        return f"<Hub tasks={len(self._tasks)} servers={list(self.config.servers)}>"

    async def __aenter__(self) -> Self:
        if self._owners is not None:
            raise RuntimeError("a Hub is entered once; make a new one")
        raise_fd_limit()
        limits, settings = self.config.limits, self.config.hub
        async with AsyncExitStack() as stack:
            starts = StartLimiter(settings.start_limit)
            self._cassette = await open_cassette(settings.cassette, self.config.secrets)
            open_channel = await self._channel_opener(stack)
            is_alone = self._open_channel is None and not isinstance(self._cassette, CassettePlayer)
            resources = await stack.enter_async_context(open_shared_resources())
            shared_results = await stack.enter_async_context(_shared_results(settings))
            self._owners = owners = await stack.enter_async_context(anyio.create_task_group())
            self._shared = HubResources(
                open_channel=open_channel,
                starts=starts,
                catalog=Catalog(CatalogStore(settings.state_path / "catalog") if is_alone else None),
                answers=SavedAnswers(CatalogStore(settings.state_path / "answers") if is_alone else None),
                shared_results=shared_results,
                has_cassette=self._cassette is not None,
                limiter=ConcurrencyLimiter("the hub", limits.concurrency, limits.queue),
                counts=self._counts,
                totals=self._totals,
                events=self.events,
                observers=self.observers,
                retry_budget=RetryBudget(),
                on_retry=self._count_retry,
                shared_server=self._shared_server,
                tools_listeners=self._tools_listeners,
                queue=limits.queue,
                task_concurrency=limits.task_concurrency,
                run_weights=limits.run_weights,
                budget=Budget(
                    processes=limits.processes,
                    memory_bytes=limits.memory_bytes,
                    open_files=limits.open_files or usable_descriptors(),
                    slots=self._slots,
                    owners=owners,
                ),
                server_limiter=self._server_limiters,
                resources=resources,
                coalescer=Coalescer(),
                caches=Caches(),
                speculation=Speculation(self.config.speculation),
            )
            if (open_sandboxes := find_sandboxes()) is not None:
                sandboxes = open_sandboxes(self.config.sandbox, start_limiter=lambda: starts.place(owners))
                self._shared.sandboxes = await stack.enter_async_context(sandboxes)
            self._owners.start_soon(self._housekeeping)
            if limits.memory_bytes is not None:
                self._owners.start_soon(self._measure_memory)
            self._stack = stack.pop_all()
        for spec in self.config.servers.values():
            if spec.share == "hub" and spec.keep_warm:
                self._owners.start_soon(_warm, self._shared_server(spec).slot())
        return self

    async def _channel_opener(self, stack: AsyncExitStack) -> ChannelOpener:
        if isinstance(self._cassette, CassettePlayer):
            missing = {name: recorded_server(name) for name in self._cassette.servers}
            self.config = self.config.model_copy(update={"servers": missing | self.config.servers})
            return self._cassette.open_channel
        if self._open_channel is not None:
            return self._open_channel
        journal = stack.enter_context(open_journal(self.config.hub.state_path / "journal"))
        spawner = await stack.enter_async_context(open_spawner(journal))
        resolver = Resolver(self.config.hub.state_path / "resolved.json")
        return channel_opener(spawner, self.config.limits.max_result_bytes, resolver)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._owners is not None
        self._closing = True
        try:
            with anyio.CancelScope(shield=True):
                await self._close_everything()
        finally:
            self._owners.cancel_scope.cancel()
            await self._stack.__aexit__(None, None, None)
            self.events.flush(all_windows=True)

    async def _close_everything(self) -> None:
        async with anyio.create_task_group() as closing:
            for held in list(self._tasks.values()):
                closing.start_soon(held.aclose)
            for server in self._shared_servers.values():
                closing.start_soon(server.aclose)

    # --- tasks ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def task(
        self,
        task_id: str | None = None,
        *,
        run: str = "",
        labels: Mapping[str, str] | None = None,
        servers: Mapping[str, ServerSpec] | None = None,
        weight: float = 1.0,
        speculation: SpeculationMode | None = None,
    ) -> AsyncIterator[HubTask]:
        """Hold a task's tools; leaving ends every process of the task.

        run: groups the tasks of one evaluation run; runs share what is scarce fairly, and within a run its tasks.
        weight: the task's share beside the others of its run. labels: more values for `${task.<label>}` in the config.
        task_id, and what stands for `${task.<label>}`: letters, digits and ._:- (see `TASK_VALUE_RULE`).
        servers: the task's own servers beside (or instead of same-named) configured ones. speculation: `none` for a
        task whose calls must not be foreseen; it can only lower the hub's `speculation.mode`.
        """
        task = await self.open_task(
            task_id, run=run, labels=labels, servers=servers, weight=weight, speculation=speculation
        )
        try:
            yield task
        finally:
            with anyio.CancelScope(shield=True):
                await self.close_task(task.id)

    async def open_task(
        self,
        task_id: str | None = None,
        *,
        run: str = "",
        labels: Mapping[str, str] | None = None,
        servers: Mapping[str, ServerSpec] | None = None,
        only_these: bool = False,
        lease: float = math.inf,
        weight: float = 1.0,
        speculation: SpeculationMode | None = None,
    ) -> HubTask:
        """Open a task that lives until `close_task()`, or until `lease` seconds pass without a sign of life.

        only_these: leave the configured servers out. Raises ConfigError when the id is taken or not allowed, or a
        template variable is unknown or has a value that is not allowed; Overloaded when there are too many tasks;
        HubClosed.
        """
        owners = self._ready()
        task_id = new_task_id() if task_id is None else check_task_id(task_id)
        if task_id in self._tasks or task_id in self._opening:
            raise ConfigError(f"task {task_id!r} is already open; close it first or choose another id")
        if len(self._tasks) + len(self._opening) >= self.config.limits.max_tasks:
            raise Overloaded(f"{len(self._tasks)} tasks are open (limits.max_tasks); close some or raise the limit")
        chosen = ({} if only_these else dict(self.config.servers)) | dict(servers or {})
        values = dict(labels or {}) | {"id": task_id, "run": run}
        specs = {name: spec.for_task(values) for name, spec in chosen.items()}
        running = self._run_task(task_id, specs, run=run, lease=lease, weight=weight, speculation=speculation)
        self._opening[task_id] = anyio.Event()  # before the first await, or two callers could open the same id
        try:
            held = self._tasks[task_id] = await hold(owners, running, name=f"task {task_id}")
        finally:
            self._opening.pop(task_id).set()
        return held.value

    @asynccontextmanager
    async def _run_task(
        self,
        task_id: str,
        specs: Mapping[str, ServerSpec],
        *,
        run: str,
        lease: float,
        weight: float,
        speculation: SpeculationMode | None,
    ) -> AsyncIterator[HubTask]:
        async with self._task_cassette(task_id, run, specs) as cassette, anyio.create_task_group() as owners:
            task = HubTask(
                task_id,
                specs=specs,
                owners=owners,
                shared=self._shared,
                run=run,
                lease=lease,
                weight=weight,
                speculation=speculation,
                cassette=cassette,
            )
            task.warm_soon()
            try:
                yield task
            finally:
                with anyio.CancelScope(shield=True):
                    await task.aclose()
                owners.cancel_scope.cancel()

    def _task_cassette(
        self, task_id: str, run: str, specs: Mapping[str, ServerSpec]
    ) -> AbstractAsyncContextManager[TaskCassette | None]:
        """Record or replay a task, if the config says so."""
        if self._cassette is None:
            return nullcontext()
        secrets: frozenset[str] = frozenset().union(*(spec.secrets for spec in specs.values()))
        return self._cassette.task(task_id, run, list(specs), secrets)

    async def ensure_task(self, task_id: str, *, lease: float = math.inf) -> HubTask:
        """Return the open task of that id, opening it if need be."""
        while True:
            opening, held = self._opening.get(task_id), self._tasks.get(task_id)
            if opening is not None:
                await opening.wait()
            elif held is None:
                return await self.open_task(task_id, lease=lease)
            elif not held.is_released:
                return held.value
            else:
                await self.close_task(task_id)  # one that is ending must have ended

    async def close_task(self, task_id: str) -> None:
        """End a task and wait until its processes are gone. Idempotent."""
        held = self._tasks.get(task_id)
        if held is None:
            return
        await held.aclose()
        if self._tasks.get(task_id) is held:
            del self._tasks[task_id]

    def get_task(self, task_id: str) -> HubTask:
        """Return an open task. Raises TaskClosed."""
        held = self._tasks.get(task_id)
        if held is None or held.is_released:
            raise TaskClosed(f"no open task {task_id!r}: it was closed, its lease ran out, or the hub was restarted")
        return held.value

    def is_open(self, task: HubTask) -> bool:
        """Whether this very task is open; another one may have its id by now."""
        held = self._tasks.get(task.id)
        return held is not None and held.value is task and not held.is_released

    @property
    def tasks(self) -> list[HubTask]:
        return [held.value for held in self._tasks.values() if not held.is_released]

    def _ready(self) -> anyio.abc.TaskGroup:
        if self._owners is None:
            raise HubClosed("the hub is not running; use `async with Hub(config) as hub:`")
        if self._closing:
            raise HubClosed("the hub is shutting down")
        return self._owners

    def on_tools_changed(self, callback: Callable[[str], None]) -> None:
        """Call `callback(server)` (without waiting) whenever a server says that its tools changed."""
        self._tools_listeners.append(callback)

    @property
    def sandboxes(self) -> SandboxProvider | None:
        """All sandboxes of this hub; None if no sandbox package is installed."""
        return self._shared.sandboxes

    @property
    def resources(self) -> SharedResources:
        """The resources that the builtin servers of this hub share."""
        return self._shared.resources

    @property
    def limiters(self) -> list[ConcurrencyLimiter]:
        """The limits that tasks share: on all calls, on starts, and those of servers."""
        of_shared = [server.limiters[0] for server in self._shared_servers.values()]
        return [self._shared.limiter, self._shared.starts.limiter, *self._server_limiters.all, *of_shared]

    # --- what tasks share --------------------------------------------------------------------------------------------

    def _shared_server(self, spec: ServerSpec) -> SessionPool:
        """Sessions are shared between tasks only for the same server with the same environment."""
        key = f"{spec.name}:{spec.fingerprint()}"
        server = self._shared_servers.get(key)
        if server is None:
            share_key = FairShareKey("hub")
            server = SessionPool.of(
                spec, context=self._context(), owners=self._ready(), shared=self._shared, share_key=share_key
            )
            self._shared_servers[key] = server
        return server

    def _context(self) -> BuiltinContext:
        """Return what builtin servers that all tasks share get from the hub."""
        if self._own_context is None:
            self._own_context = self._shared.builtin_context("hub")
        return self._own_context

    def _count_retry(self) -> None:
        self.retries += 1

    # --- housekeeping -----------------------------------------------------------------------------------------------

    async def _housekeeping(self) -> None:
        while True:
            await anyio.sleep(_HOUSEKEEPING_INTERVAL_S)
            self.events.flush()
            for task in self.tasks:
                if task.lease_left <= 0:
                    self._ready().start_soon(self._expire, task)
            if self._shared.budget.waiting:
                self._shared.budget.check()  # nothing notifies the hub when descriptors or memory are freed
            for slot in self._slots():
                limit = idle_limit(slot.spec)
                if limit is not None and slot.idle_seconds > limit * random.uniform(1, 1 + _IDLE_JITTER):  # noqa: S311
                    self._ready().start_soon(slot.stop_if_idle, limit)

    async def _expire(self, task: HubTask) -> None:
        if task.lease_left <= 0 and self.is_open(task):  # the client may have renewed it since the check began
            logger.warning("task %s was silent for %.0f s and is closed", task.id, task.lease)
            await self.close_task(task.id)

    async def _measure_memory(self) -> None:
        while True:
            self._shared.budget.measured(await anyio.to_thread.run_sync(memory_below, os.getpid()))
            await anyio.sleep(_MEASURE_S)

    def _slots(self) -> list[Slot]:
        own = [slot for task in self.tasks for slot in task.own_slots()]
        return own + [slot for server in self._shared_servers.values() for slot in server.slots]

    def statistics(self) -> HubStatistics:
        return HubStatistics(
            pid=os.getpid(),
            tasks=tuple(replace(task.statistics(), paused=self._paused(task.id)) for task in self.tasks),
            shared=tuple(slot.statistics() for server in self._shared_servers.values() for slot in server.slots),
            calls=self._counts.calls,
            errors=self._counts.errors,
            starts=self._totals.starts,
            deaths=self._totals.deaths,
            retries=self.retries,
            started_at=self._started_at,
            sandboxes=self._sandbox_counts(),
            limiters=tuple(limiter.statistics() for limiter in self.limiters),
            budget=self._shared.budget.statistics(),
            coalescing=self._shared.coalescer.statistics(),
            cache=self._shared.caches.statistics(),
            shared_results=sharing.store.statistics() if (sharing := self._shared.shared_results) is not None else None,
            cassette=self._cassette.statistics() if self._cassette is not None else None,
            servers=self.events.statistics(),
            speculation=self._shared.speculation.statistics(),
        )

    def _paused(self, task_id: str) -> str:
        return next(filter(None, (paused(task_id) for paused in self.pauses)), "")

    def _sandbox_counts(self) -> SandboxCounts | None:
        if self._shared.sandboxes is None:
            return None
        counted = self._shared.sandboxes.statistics()
        return SandboxCounts(counted.live, counted.ready, counted.created, counted.memory_bytes)


@asynccontextmanager
async def _shared_results(settings: HubSettings) -> AsyncIterator[SharedResults | None]:
    sharing = settings.shared_results
    if sharing is None:
        yield None
        return
    store = ResultStore(sharing.dir or settings.state_path, max_bytes=sharing.max_bytes)
    try:
        yield SharedResults(store, sharing)
    finally:
        with anyio.CancelScope(shield=True):  # the thread's work has bounds of its own
            await store.aclose()


async def open_cassette(
    settings: CassetteSettings | None, secrets: frozenset[str]
) -> CassetteRecorder | CassettePlayer | None:
    """Open the cassette of a config. Raises ConfigError. secrets: of the config."""
    if settings is None:
        return None
    if settings.mode == "record":
        return await CassetteRecorder.open(settings.dir, secrets)
    return await CassettePlayer.open(settings.dir, time_scale=settings.time_scale, secrets=secrets)


async def _warm(slot: Slot) -> None:
    try:
        await slot.warm()
    except StartError:
        pass  # the slot has written why
    except Exception as exc:
        logger.warning("keep_warm: %s", exc)


def channel_opener(spawner: Spawner, limit: int, resolver: Resolver) -> ChannelOpener:
    """Return the opener for every transport. limit: bytes of the largest answer."""

    def open_channel(
        spec: ServerSpec, context: BuiltinContext, profile: ClientProfile
    ) -> AbstractAsyncContextManager[Channel]:
        if spec.transport == "stdio":
            return open_stdio(spec, spawner, profile, limit=limit, resolver=resolver)
        if spec.transport == "builtin":
            return open_builtin(spec, context, profile)
        return open_http(spec, profile, limit=limit)

    return open_channel
