"""The program of a worker process: it opens one role and answers requests, one JSON line each, until stdin ends.

    python -m benchmarks.common.worker_main MODULE:FUNCTION '{"keyword": "argument"}' [--uvloop]

FUNCTION is an async context manager that yields `act(request) -> answer`. A process of its own for each variant keeps
their event loops, garbage and CPU time apart, and lets one run under another interpreter: needs only anyio.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread

Json = dict[str, Any]
Act = Callable[[Json], Awaitable[Json]]


async def serve(role: str, arguments: Json) -> None:
    module, _, function = role.partition(":")
    open_role = getattr(importlib.import_module(module), function)
    async with open_role(**arguments) as act:
        _answer({"ready": True})
        # Read in a thread: the loop keeps serving what the role holds open.
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            _answer(await act(json.loads(line)))


def _answer(answer: Json) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    anyio.run(
        functools.partial(serve, sys.argv[1], json.loads(sys.argv[2])),
        backend_options={"use_uvloop": "--uvloop" in sys.argv[3:]},
    )
