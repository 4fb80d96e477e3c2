"""Renews the leases of this process's tasks, and closes tasks that were dropped without being closed.

A model may think for twenty minutes, which is longer than a task's lease. One daemon thread per process renews every
open task after a third of its lease. It holds tasks weakly. It closes a task that was garbage-collected, and at the
end of the process all that are left. Messages reach the thread through a `SimpleQueue`. Its `put` is safe in a
finalizer, so a garbage collection cannot deadlock on a lock.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import time
import weakref
from dataclasses import dataclass, field

from toolhub.client import blocking
from toolhub.client.address import Address
from toolhub.errors import TaskClosed, ToolhubError

# For each wait on the socket. A hub that is busy for longer misses one of three renewals.
_REQUEST_S = 10.0
# At exit, for all tasks together. A hub that does not answer must not delay the process's end.
_EXIT_TIMEOUT_S = 3.0

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class RenewedTask:
    """The data to renew and close one task. The RemoteTask holds the only strong reference."""

    address: Address
    token: str | None
    target: str
    lease: float | None
    due: float = 0.0
    opened_by: int = field(default_factory=os.getpid)
    watched_by: int = 0


class LeaseRenewer:
    """The process's renewal thread and its list of tasks. In a forked child the list is empty."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)
        atexit.register(self._close_all)

    def _reset(self) -> None:
        self._queue: queue.SimpleQueue[weakref.ref[RenewedTask] | RenewedTask] = queue.SimpleQueue()
        self._renewing: list[weakref.ref[RenewedTask]] = []
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<LeaseRenewer of {os.getpid()} renewing={len(self._renewing)}>"

    def watch(self, held: RenewedTask) -> None:
        """Renew a task's lease for as long as `held` exists."""
        held.due = _next_renewal(held)
        held.watched_by = os.getpid()
        self._queue.put(weakref.ref(held))
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="toolhub lease renewer", daemon=True)
                self._thread.start()

    def is_watching(self, held: RenewedTask) -> bool:
        return held.watched_by == os.getpid()

    def drop(self, held: RenewedTask) -> None:
        """Stop renewing a task that was closed."""
        held.watched_by = 0

    def close_soon(self, held: RenewedTask) -> None:
        """Close a task that was dropped. Safe in a finalizer."""
        held.watched_by = 0
        self._queue.put(held)

    def _run(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=self._pause())
            except queue.Empty:
                self._renewing = [ref for ref in self._renewing if self._renew_if_due(ref)]
                continue
            if isinstance(item, RenewedTask):
                _close(item, _REQUEST_S)
            else:
                self._renewing.append(item)
            del item  # else this thread would keep it alive

    def _pause(self) -> float | None:
        due = [held.due for held in self._alive() if held.lease is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _alive(self) -> list[RenewedTask]:
        found = [ref() for ref in list(self._renewing)]
        return [held for held in found if held is not None and self.is_watching(held)]

    def _renew_if_due(self, ref: weakref.ref[RenewedTask]) -> bool:
        """Renew if it is time; return False if the task needs no more renewals."""
        held = ref()
        if held is None or not self.is_watching(held):
            return False
        if held.due > time.monotonic():
            return True
        held.due = _next_renewal(held)
        try:
            _request(held, "POST", held.target + "/renew", _REQUEST_S)
        except TaskClosed:
            return False  # the next call raises TaskClosed
        except ToolhubError as exc:
            logger.debug("cannot renew the lease of %s: %s", held.target, exc)
        return True

    def _close_all(self) -> None:
        deadline = time.monotonic() + _EXIT_TIMEOUT_S
        for held in self._alive():
            left = deadline - time.monotonic()
            if held.opened_by == os.getpid() and (left <= 0 or not _close(held, left)):
                return


def _next_renewal(held: RenewedTask) -> float:
    return time.monotonic() + (held.lease or 0.0) / 3


def _close(held: RenewedTask, timeout: float) -> bool:
    try:
        _request(held, "DELETE", held.target, timeout)
    except ToolhubError as exc:
        logger.debug("cannot close %s; it ends when its lease ends: %s", held.target, exc)
        return False
    return True


def _request(held: RenewedTask, method: str, target: str, timeout: float) -> None:
    blocking.request(held.address, method, target, token=held.token, timeout=timeout)


lease_renewer = LeaseRenewer()
