"""What happens to servers: a line in the log for each event, counts by server, and which servers do not work now.

Slots report here. A server that dies again and again must not flood the log: in `WINDOW_S` seconds at most `LINES`
lines per server and level are written. At the end of that time one line says how many were suppressed.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from toolhub.config import ServerSpec, redact
from toolhub.model import ServerHealth

LINES, WINDOW_S = 10, 10.0
# Clients may bring servers with names of their own, and a name that was counted is kept for ever.
MOST_NAMES, OTHERS = 1000, "(others)"
# The owner of the servers that all tasks share.
HUB = "hub"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

logger = logging.getLogger("toolhub.servers")


@dataclass(eq=False)
class _Window:
    """What was written about one server since `began`."""

    began: float
    lines: int = 0
    suppressed: int = 0


class ServerEvents:
    """One per hub. clock: seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[tuple[str, int], _Window] = {}
        self._health: dict[str, ServerHealth] = {}

    def __repr__(self) -> str:
        return f"<ServerEvents servers={len(self._health)} broken={[one.server for one in self.broken]}>"

    # --- what slots report ------------------------------------------------------------------------------------------

    def starting(self, spec: ServerSpec, owner: str, *, deaths: int) -> None:
        """A start has begun. deaths: how often this server of this owner has died before."""
        health = self._of(spec)
        self._put(replace(health, starts=health.starts + 1))
        ends = "death or failed start" if deaths == 1 else "deaths or failed starts"
        again = f" again after {deaths} {ends}" if deaths else ""
        self._write(logging.INFO, "restart" if deaths else "start", spec, owner, f"is starting{again}")

    def ready(self, spec: ServerSpec, owner: str, *, pid: int | None, seconds: float) -> None:
        """A start has succeeded."""
        self._put(replace(self._of(spec), state="ok", since=None, last_error=None, task=None))
        shown = f" (pid {pid})" if pid is not None else ""
        self._write(logging.INFO, "ready", spec, owner, f"is ready after {seconds:.2f} s{shown}")

    def start_failed(self, spec: ServerSpec, owner: str, reason: str) -> None:
        """reason: the error's text, with the last lines of stderr."""
        self._count_death(spec)
        self._set_broken(spec, owner, "failing", reason)
        self._write(logging.WARNING, "start_failed", spec, owner, reason.removeprefix(f"server {spec.name!r} "))

    def died(self, spec: ServerSpec, owner: str, reason: str, *, pid: int | None, calls: Iterable[str]) -> None:
        """A running server has ended by itself. calls: the ids of the calls that were in flight."""
        self._count_death(spec)
        shown = ", ".join(calls)
        during = f"calls in flight: {shown}" if shown else "no call in flight"
        which = f"(pid {pid}, {during}) " if pid is not None else f"({during}) "
        self._write(logging.WARNING, "died", spec, owner, which + reason, call_ids=shown)

    def given_up(self, spec: ServerSpec, owner: str, reason: str, *, deaths: int) -> None:
        """It died too often; calls are refused without a start until the cool-down is over."""
        self._set_broken(spec, owner, "given_up", reason)
        cooldown = spec.restart.cooldown_s
        retry = "until the hub is restarted" if cooldown is None else f"for {cooldown:g} s; then one start is tried"
        self._write(logging.WARNING, "given_up", spec, owner, f"is given up after {deaths} deaths: no start {retry}")

    # --- what is known now ------------------------------------------------------------------------------------------

    def statistics(self) -> tuple[ServerHealth, ...]:
        """Every server that was started so far, by name."""
        return tuple(self._health[name] for name in sorted(self._health))

    @property
    def broken(self) -> tuple[ServerHealth, ...]:
        """The servers whose last start failed, or that were given up."""
        return tuple(one for one in self.statistics() if one.state != "ok")

    def flush(self, *, all_windows: bool = False) -> None:
        """Log how many lines were suppressed in windows that are over (or in all), and forget these windows."""
        now = self._clock()
        for (server, level), window in list(self._windows.items()):
            if all_windows or now - window.began >= WINDOW_S:
                del self._windows[server, level]
                if window.suppressed:
                    message = f"server {server!r}: {window.suppressed} more lines were suppressed in {WINDOW_S:g} s"
                    logger.log(level, "%s", message, extra={"event": "suppressed", "server": server})

    # --- how ----------------------------------------------------------------------------------------------------

    def _of(self, spec: ServerSpec) -> ServerHealth:
        name = spec.name if spec.name in self._health or len(self._health) < MOST_NAMES else OTHERS
        return self._health.get(name) or ServerHealth(name)

    def _put(self, health: ServerHealth) -> None:
        self._health[health.server] = health

    def _count_death(self, spec: ServerSpec) -> None:
        health = self._of(spec)
        self._put(replace(health, deaths=health.deaths + 1))

    def _set_broken(self, spec: ServerSpec, owner: str, state: str, reason: str) -> None:
        health = self._of(spec)
        since = health.since if health.state != "ok" else time.time()
        self._put(replace(health, state=state, since=since, last_error=_readable(spec, reason), task=owner))

    def _write(self, level: int, event: str, spec: ServerSpec, owner: str, text: str, **fields: Any) -> None:
        self.flush()
        window = self._windows.setdefault((spec.name, level), _Window(self._clock()))
        if window.lines >= LINES:
            window.suppressed += 1
            return
        window.lines += 1
        whose = "shared by all tasks" if owner == HUB else f"of task {owner!r}"
        message = _readable(spec, f"server {spec.name!r} {whose} {text}")
        logger.log(level, "%s", message, extra={"event": event, "server": spec.name, "task": owner} | fields)


def _readable(spec: ServerSpec, text: str) -> str:
    """Without secrets, and without the control characters with which a server could write to the terminal."""
    return _CONTROL.sub("?", redact(text, spec.secrets))
