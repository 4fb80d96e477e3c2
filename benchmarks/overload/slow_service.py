"""An MCP server that gets slower with each request in service. Needs the standard library only.

    python -S benchmarks/overload/slow_service.py [--k K] [--p P] [--stops-abandoned] [--ledger FILE]

The tool `work` takes ``{"text", "work_s"}`` and answers `text` once `work_s` seconds of work are done. All requests in
service go on at the same rate, 1 / slowdown(n) with slowdown(n) = 1 + ((n - 1) / k) ** p for n of them: processor
sharing with thrashing. Two points are known of a service that starts sandboxes: 33 s for one alone, 631 s with 120 at
once, a slowdown of 19.1. They leave the exponent open, and with it what lies between:

- p = 2: each pair of requests is in each other's way (the coherency term of Gunther's universal scalability law).
  k = 27.95; it finishes most with 29 at once, 2.3 times as much as with 120.
- p = 1: they only share what there is. k = 6.57; more at once finish a little more, never less.

A service that starts a sandbox does not learn that its caller has given up; nor does this server: a request is
worked on to its end, unless --stops-abandoned. It is no model of any limit in front of it.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import select
import sys
import time
from typing import Any

VERSION = "2025-06-18"
ALONE_S, BUSY_S, AT_ONCE = 33.0, 631.0, 120
_PROPERTIES = {"text": {"type": "string"}, "work_s": {"type": "number"}}
_SCHEMA = {"type": "object", "properties": _PROPERTIES, "required": ["text", "work_s"]}
_READ_BYTES = 65536


def fitted_k(p: float) -> float:
    """The k with which the curve of exponent p goes through both known points."""
    return float((AT_ONCE - 1) / (BUSY_S / ALONE_S - 1) ** (1 / p))


class ProcessorSharing:
    """The requests in service. Pure: `now` is seconds on any clock that does not go back.

    A clock of its own runs at the common rate, so each request ends at a point of that clock that never changes.
    """

    def __init__(self, k: float, p: float) -> None:
        self._k, self._p = k, p
        self._clock = self._now = 0.0
        self._ends: list[tuple[float, Any]] = []
        self._finished: list[Any] = []

    def __len__(self) -> int:
        return len(self._ends)

    def slowdown(self) -> float:
        return 1 + float((max(0, len(self._ends) - 1) / self._k) ** self._p)

    def enter(self, key: Any, work_s: float, now: float) -> None:
        """key: of the request; comparable, and no other's."""
        self._advance(now)
        heapq.heappush(self._ends, (self._clock + work_s, key))

    def abandon(self, key: Any, now: float) -> None:
        """Stop working on a request; one that is not in service is no error."""
        self._advance(now)
        self._ends = [end for end in self._ends if end[1] != key]
        heapq.heapify(self._ends)

    def next_end(self) -> float | None:
        """When the next request is finished if none comes before."""
        return self._now + (self._ends[0][0] - self._clock) * self.slowdown() if self._ends else None

    def finished(self, now: float) -> list[Any]:
        """Return what has been finished since the last time, in order."""
        self._advance(now)
        done, self._finished = self._finished, []
        return done

    def _advance(self, now: float) -> None:
        while (end := self.next_end()) is not None and end <= now:
            self._clock, self._now = self._ends[0][0], max(end, self._now)
            self._finished.append(heapq.heappop(self._ends)[1])
        self._clock += (now - self._now) / self.slowdown()
        self._now = now


class Server:
    """Lines in, lines out."""

    def __init__(self, sharing: ProcessorSharing, *, stops_abandoned: bool, ledger: str | None) -> None:
        self._sharing = sharing
        self._stops_abandoned = stops_abandoned
        self._ledger = open(ledger, "a", buffering=1) if ledger else None
        self._texts: dict[Any, str] = {}

    def run(self) -> None:
        """Serve until stdin ends."""
        rest = b""
        while True:
            end = self._sharing.next_end()
            wait = None if end is None else max(0.0, end - time.monotonic())
            if select.select([0], [], [], wait)[0]:
                chunk = os.read(0, _READ_BYTES)
                if not chunk:
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
            for key in self._sharing.finished(time.monotonic()):
                content = [{"type": "text", "text": self._texts.pop(key)}]
                self._answer(key, {"content": content, "isError": False})

    def _take(self, message: Any) -> None:
        key, method, params = message.get("id"), message.get("method"), message.get("params") or {}
        if method == "tools/call":
            text, work_s = params["arguments"]["text"], params["arguments"]["work_s"]
            if self._ledger is not None:
                self._ledger.write(text + "\n")
            self._texts[key] = text
            self._sharing.enter(key, work_s, time.monotonic())
        elif method == "notifications/cancelled" and self._stops_abandoned:
            self._sharing.abandon(params["requestId"], time.monotonic())
            self._texts.pop(params["requestId"], None)
        elif method == "initialize":
            about = {"name": "slow", "version": "1"}
            self._answer(key, {"protocolVersion": VERSION, "capabilities": {"tools": {}}, "serverInfo": about})
        elif key is not None:
            self._answer(key, {"tools": [{"name": "work", "inputSchema": _SCHEMA}]})

    def _answer(self, key: Any, result: Any) -> None:
        line = json.dumps({"jsonrpc": "2.0", "id": key, "result": result})
        sys.stdout.buffer.write(line.encode() + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--k", type=float, default=float("inf"))
    parser.add_argument("--p", type=float, default=1.0)
    parser.add_argument("--stops-abandoned", action="store_true")
    parser.add_argument("--ledger")
    options = parser.parse_args()
    sharing = ProcessorSharing(options.k, options.p)
    Server(sharing, stops_abandoned=options.stops_abandoned, ledger=options.ledger).run()


if __name__ == "__main__":
    main()
