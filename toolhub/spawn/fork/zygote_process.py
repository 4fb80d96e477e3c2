"""The hub's side of a zygote: start it, make it load modules, request servers from it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import anyio

from toolhub.spawn.child import Child, Request, StarterLost, next_message, request_child, send_request
from toolhub.spawn.journal import Journal
from toolhub.spawn.tail import StderrTail

SCRIPT = Path(__file__).with_name("zygote.py")
# Room in the zygote's arguments, which its servers overwrite with their command lines.
_PADDING = " " * 512
# Loading takes about as long as a server's start. A zygote that takes longer than this hangs.
PRELOAD_S = 30.0


class Spawn(Protocol):
    """`Spawner.spawn`."""

    def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None = None, stdin: int | None = None
    ) -> Awaitable[Child]: ...


class PreloadError(Exception):
    """A zygote ended while it loaded modules.

    unsafe: the modules that caused it, each with the reason; empty if that is not known.
    """

    def __init__(self, reason: str, unsafe: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.unsafe = dict(unsafe or {})


class ZygoteProcess:
    """A zygote that is ready to fork. Use `open_zygote()`."""

    def __init__(self, child: Child, requests: socket.socket, journal: Journal | None) -> None:
        self.child = child
        self.forks = 0
        self._requests = requests
        self._journal = journal
        self._sending = anyio.Lock()

    @property
    def is_alive(self) -> bool:
        return not self.child.exited.is_set()

    async def wait_gone(self) -> None:
        await self.child.gone.wait()

    async def fork(self, request: Request, *, recorder: int | None = None) -> Child:
        """Start a server. recorder: a descriptor for its recorder. Raises StarterLost if the zygote has ended."""
        self.forks += 1
        return await request_child(
            request,
            self._send,
            journal=self._journal,
            explain=lambda error: _explain(error, request),
            extra_fds=() if recorder is None else (recorder,),
        )

    async def _send(self, body: bytes, fds: list[int]) -> None:
        async with self._sending:
            try:
                await send_request(self._requests, body, fds)
            except OSError as exc:
                raise StarterLost("the interpreter to fork from has ended") from exc


@asynccontextmanager
async def open_zygote(
    spawn: Spawn, interpreter: Sequence[str], order: Mapping[str, Any], *, cwd: str, journal: Journal | None
) -> AsyncIterator[ZygoteProcess]:
    """Start a zygote and wait until it has loaded the modules of `order`. Leaving the block ends it and its servers.

    order: see `preload.preload`. Its `env` is the zygote's environment. Raises SpawnFailed, PreloadError.
    """
    requests, theirs = socket.socketpair()
    requests.setblocking(False)
    try:
        with theirs:
            argv = [*interpreter, str(SCRIPT), _PADDING]
            child = await spawn(argv, env=order["env"], cwd=cwd, stdin=theirs.fileno())
    except BaseException:
        requests.close()
        raise
    tail = StderrTail()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child.watch)
            for fd in (child.stdout, child.stderr):
                tasks.start_soon(tail.drain, fd)
            zygote = ZygoteProcess(child, requests, journal)
            await zygote._send(json.dumps(order).encode(), [])
            await _wait_ready(requests, child, tail)
            yield zygote
            tasks.cancel_scope.cancel()
    finally:
        requests.close()
        child.close()


async def _wait_ready(requests: socket.socket, child: Child, tail: StderrTail) -> None:
    unread, importing = bytearray(), ""
    with anyio.move_on_after(PRELOAD_S):
        while (message := await next_message(requests, unread)) is not None:
            if "ready" in message:
                return
            if "unsafe" in message:
                raise _unsafe(message["unsafe"])
            importing = str(message.get("importing", ""))
        await child.exited.wait()
        last = f" ({tail.lines()[-1]})" if tail.lines() else ""
        raise _failed(f"the zygote ended with exit code {child.exit_code} while it loaded modules{last}", importing)
    raise _failed(f"loading took more than {PRELOAD_S:g} s", importing)


def _unsafe(found: Sequence[tuple[Sequence[str], str]]) -> PreloadError:
    """found: see `preload.Unsafe`."""
    reasons = {str(name): f"{modules[-1]}: {reason}" for modules, reason in found for name in modules}
    return PreloadError(next(iter(reasons.values())), reasons)


def _failed(reason: str, importing: str) -> PreloadError:
    return PreloadError(reason, {importing: f"{importing}: {reason}"} if importing else None)


def _explain(error: tuple[int, str, str | None], request: Request) -> str:
    _, text, filename = error
    if filename == request["cwd"]:
        return f"working directory {filename!r}: {text}; create it or correct `cwd`"
    return f"the forked process could not become {os.path.basename(request['argv'][0])!r}: {text}"
