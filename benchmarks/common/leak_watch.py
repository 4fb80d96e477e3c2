"""Watches the memory of a hub that is busy for a long time, and kills some of its servers meanwhile."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import anyio
import httpx2
import psutil

from benchmarks.common.measure import percentile
from benchmarks.common.result import Json

KIB = 1024
_PAUSE_S = 1.0
# One kill in so many hits a server that all tasks share. With more in a short time the hub would give it up.
_SHARED_DEATH = 6
# Far longer than any answer should take: only a hub that hangs reaches it.
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class HubSample:
    """One look at the hub. calls: how many it has had so far."""

    at_s: float
    calls: int
    tasks: int
    rss_kib: float
    fds: int
    health_ms: float


@dataclass
class HubHistory:
    """All samples. kills: how many servers were killed on purpose."""

    samples: list[HubSample] = field(default_factory=list)
    kills: int = 0
    statistics: Json = field(default_factory=dict)

    @property
    def settled(self) -> list[HubSample]:
        """The samples after the first quarter of the calls, while the most tasks are open.

        No task begins or ends in that time.
        """
        quarter, most = self.samples[-1].calls / 4, max(sample.tasks for sample in self.samples)
        working = [sample for sample in self.samples if sample.tasks == most]
        return [sample for sample in working if sample.calls >= quarter] or working

    def slope(self) -> float:
        """KiB per 1,000 calls that the hub grew by, once settled."""
        settled = self.settled
        return least_squares([sample.calls / 1000 for sample in settled], [sample.rss_kib for sample in settled])

    def fd_growth(self) -> float:
        """Median of the descriptors in the last quarter of the settled time less that in the first."""
        settled = self.settled
        quarter = max(1, len(settled) // 4)
        first, last = settled[:quarter], settled[-quarter:]
        return percentile([s.fds for s in last], 0.5) - percentile([s.fds for s in first], 0.5)


def least_squares(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of the line of least squares; 0 if all x are equal."""
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((one - middle_x) ** 2 for one in x)
    return sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True)) / spread if spread else 0.0


class LeakWatcher:
    """Looks at one served hub once a second: `await watcher.watch(...)` until it is cancelled."""

    def __init__(self, pid: int, client: httpx2.AsyncClient) -> None:
        self._hub = psutil.Process(pid)
        self._client = client
        self._began = time.monotonic()
        self._killed: set[int] = set()
        self.seen = HubHistory()

    async def watch(self, kill_at_s: Sequence[float], *, seed: int = 0) -> None:
        """Take a sample each second. At each of `kill_at_s`, in seconds from now, kill a stdio server at random."""
        source, due = random.Random(seed), sorted(kill_at_s)
        began = time.monotonic()
        while True:
            await self.look()
            while due and time.monotonic() - began >= due[0]:
                due.pop(0)
                self._kill(source)
            await anyio.sleep(_PAUSE_S)

    async def look(self) -> HubSample:
        """Take one sample."""
        began = time.perf_counter()
        (await self._client.get("/healthz")).raise_for_status()
        health_ms = (time.perf_counter() - began) * 1e3
        told: Json = (await self._client.get("/v1/statistics")).raise_for_status().json()
        sample = HubSample(
            time.monotonic() - self._began,
            told["calls"],
            len(told["tasks"]),
            self._hub.memory_info().rss / KIB,
            self._hub.num_fds(),
            health_ms,
        )
        self.seen.statistics = told
        self.seen.samples.append(sample)
        return sample

    def _kill(self, source: random.Random) -> None:
        told = self.seen.statistics
        own = [slot for task in told["tasks"] for slot in task["slots"]]
        slots = own if self.seen.kills % _SHARED_DEATH else told["shared"]
        pids = {slot["pid"] for slot in slots} - {None, self._hub.pid} - self._killed
        for pid in source.sample(sorted(pids), len(pids)):
            self._killed.add(pid)
            with suppress(ProcessLookupError):  # it may have ended with its task in the meantime
                os.kill(pid, signal.SIGKILL)
                self.seen.kills += 1
                return


def open_client(socket: str) -> httpx2.AsyncClient:
    """A client of the hub at a unix socket."""
    transport = httpx2.AsyncHTTPTransport(uds=socket)
    return httpx2.AsyncClient(base_url="http://hub", transport=transport, timeout=_PATIENCE_S)
