"""A conversation with a server that is a child process, over its stdin and stdout."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from toolhub.channel.base import EraRefused, ExitInfo, OpenFailed
from toolhub.channel.jsonrpc.peer import Peer
from toolhub.channel.jsonrpc.pipes import StdinStream, StdoutStream
from toolhub.channel.mcp import McpChannel, conversation, open_reason
from toolhub.config import ServerSpec
from toolhub.model import OWN_PROFILE, ClientProfile
from toolhub.owned import unwrapped
from toolhub.spawn.child import stop
from toolhub.spawn.exec import Child, Spawner, SpawnFailed, child_environment
from toolhub.spawn.launchers.resolver import Command, Resolver
from toolhub.spawn.tail import StderrTail

# How long to read on after the process has ended: its last answer may still be in the pipe, which a grandchild may hold
# open for ever.
_EOF_GRACE_S = 0.1
# A server that exits closes its stdout first. Its exit code follows within milliseconds.
_EXIT_CODE_S = 0.5


@asynccontextmanager
async def open_stdio(
    spec: ServerSpec,
    spawner: Spawner,
    profile: ClientProfile = OWN_PROFILE,
    *,
    limit: int,
    resolver: Resolver | None = None,
) -> AsyncIterator[McpChannel]:
    """Start the server's process and talk to it; leaving ends the process and everything it started.

    limit: bytes of the longest line accepted. resolver: knows what launchers such as npx run; if that command does not
    start, the launcher itself is run. A server that refuses the era of the profile is started once more, for the other
    one. Raises OpenFailed.
    """
    opened = False
    try:
        async with _open_resolved(spec, spawner, profile, limit=limit, resolver=resolver) as channel:
            opened = True
            yield channel
        return
    except EraRefused:
        if opened:
            raise
    async with _open_resolved(spec, spawner, profile.in_other_era(), limit=limit, resolver=resolver) as channel:
        yield channel


@asynccontextmanager
async def _open_resolved(
    spec: ServerSpec, spawner: Spawner, profile: ClientProfile, *, limit: int, resolver: Resolver | None
) -> AsyncIterator[McpChannel]:
    command = Command([spec.command or "", *spec.args], child_environment(spec.env, spec.inherit_env), spec.cwd)
    resolved = resolver.resolve(command) if resolver is not None else None
    if resolver is not None and resolved is not None:
        opened, began = False, anyio.current_time()
        try:
            async with _open_command(spec, resolved, spawner, profile, limit=limit) as channel:
                opened = True
                yield channel
            return
        except OpenFailed as exc:
            if opened or isinstance(exc, EraRefused):
                raise
            resolver.record_failure(command)
            if anyio.current_time() - began >= spec.start_timeout_s:
                raise  # the caller has waited long enough
    async with _open_command(spec, command, spawner, profile, limit=limit) as channel:
        if resolver is not None:
            resolver.record(command, channel.pid)
        yield channel


@asynccontextmanager
async def _open_command(
    spec: ServerSpec, command: Command, spawner: Spawner, profile: ClientProfile, *, limit: int
) -> AsyncIterator[McpChannel]:
    child: Child | None = None
    tail = StderrTail()
    stdout: StdoutStream | None = None

    def evidence() -> ExitInfo:
        return ExitInfo(
            # If the hub ended the connection, the exit code means nothing. `cause` has the reason.
            exit_code=child.exit_code if child and not (stdout and stdout.failure) else None,
            stderr=tail.lines(),
            noise=list(stdout.noise) if stdout else [],
            noise_lines=stdout.noise_lines if stdout else 0,
            cause=stdout.failure if stdout else "",
        )

    try:
        child = await spawner.start(spec, command.argv, env=command.env)
    except SpawnFailed as exc:
        raise OpenFailed(str(exc)) from exc
    stdout = StdoutStream(child, limit=limit)
    opened = False
    watching = anyio.CancelScope(shield=True)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tail.drain, child.stderr)
            tasks.start_soon(_watch, child, watching)
            tasks.start_soon(_end_of_process, child, stdout)
            try:
                peer = Peer(stdout, StdinStream(child, tasks, stdout.fail))
                async with conversation(spec, peer, evidence, profile) as channel:
                    channel.pid = child.pid
                    child.on_ready()
                    opened = True
                    yield channel
            finally:
                if not opened:
                    await _exit_code(child, stdout)
                    child.kill()  # it never became ready, and its caller waits for the error
                await stop(child, grace=spec.stop_timeout_s)
                watching.cancel()
                tasks.cancel_scope.cancel()
    except Exception as exc:
        if opened:
            raise
        kind = EraRefused if isinstance(unwrapped(exc), EraRefused) else OpenFailed
        raise kind(open_reason(exc), evidence()) from exc
    finally:
        child.close()


async def _watch(child: Child, watching: anyio.CancelScope) -> None:
    """Follow the process. Shielded: `stop()` needs to know that the process ended even when the hub is cancelled."""
    with watching:
        await child.watch()


async def _exit_code(child: Child, stdout: StdoutStream) -> None:
    """Let a server that is exiting finish: if it were killed, its exit code would be lost."""
    if stdout.has_ended:
        with anyio.move_on_after(_EXIT_CODE_S, shield=True):
            await child.exited.wait()


async def _end_of_process(child: Child, stdout: StdoutStream) -> None:
    """End the stream when the process has ended, even if a grandchild keeps the pipe open."""
    await child.exited.wait()
    await anyio.sleep(_EOF_GRACE_S)
    stdout.end()
