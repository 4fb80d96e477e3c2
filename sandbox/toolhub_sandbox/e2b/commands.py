"""Shell commands of one sandbox, and ending them with all that they started.

Each command is wrapped: when it has ended, its shell writes a mark with the exit code to both streams. So background
processes may keep the streams open, and the exit code is the shell's, not the service's -1.

The service kills one process. The others are found as its descendants, and by a variable that they inherited.
"""

from __future__ import annotations

import logging
import math
import secrets
import shlex
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import anyio

from toolhub_sandbox.e2b.lifecycle import Lifecycle
from toolhub_sandbox.e2b.output import MarkedStream
from toolhub_sandbox.errors import SandboxError, SandboxLimit, SandboxLost
from toolhub_sandbox.model import CommandResult

log = logging.getLogger("toolhub.sandbox.e2b")

VARIABLE = "TOOLHUB_COMMAND"
KILLED = 128 + 9
# Reading /proc and killing takes milliseconds; longer on a machine that is out of memory.
KILL_S = 10.0
# Disconnecting from a stream needs no request.
DISCONNECT_S = 1.0

# The deadlines are ours. The SDK's one for opening a stream opens it in a task of its own on Python 3.11, which then
# ends, when it is cancelled, with an error that asyncio reports as never retrieved.
_NO_DEADLINE = {"timeout": 0, "request_timeout": 0}

# The subshell keeps `exit` and `set` of the command away from the mark; the token is split so that the mark is
# not printed by a command that prints its own text (`set -x`, `ps`).
_WRAPPED = """( eval {command} )
code=$?; mark={half}'{other}'
printf '%s%d\\n' "$mark" $code; printf '%s%d\\n' "$mark" $code >&2; exit $code"""
# Several passes, because a process can start another one between being seen and being killed.
_KILL = """
tree() {{ for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do echo "$child"; tree "$child"; done; }}
marked() {{ grep -slzxF {variable}={token} "$@" | cut -d/ -f3; }}
victims=$(tree "$(marked /proc/{pid}/environ)")
for pass in 1 2 3 4 5 6 7 8 9 10; do
  victims="$victims $(marked /proc/[0-9]*/environ)"
  [ -z "${{victims//[[:space:]]/}}" ] && exit 0
  kill -KILL $victims 2>/dev/null
  victims=""
  sleep 0.02
done
exit 1"""


class E2BCommands:
    """Runs commands; any number at once."""

    def __init__(self, lifecycle: Lifecycle, *, output_bytes: int) -> None:
        self._lifecycle = lifecycle
        self._commands = lifecycle.remote.commands
        self._output_bytes = output_bytes

    async def run(self, command: str, *, timeout: float, cwd: str, env: Mapping[str, str]) -> CommandResult:
        """As `Sandbox.run_command`."""
        running = _Command(self._output_bytes)
        try:
            handle = await self._start(running, command, cwd, env)
            with anyio.move_on_after(timeout) as scope:
                exit_code = await self._wait(running, handle)
            if scope.cancelled_caught:
                await self._kill(running)
                exit_code = KILLED
        except BaseException as exc:
            if running.handle is not None or not isinstance(exc, SandboxLimit):  # else it was not started
                with anyio.CancelScope(shield=True):
                    await self._kill(running)
            raise
        finally:
            await running.disconnect()
        return running.result(exit_code, timed_out=scope.cancelled_caught)

    async def _start(self, running: _Command, command: str, cwd: str, env: Mapping[str, str]) -> Any:
        running.handle = await self._lifecycle.call(
            lambda: self._commands.run(
                running.wrapped(command),
                background=True,
                envs={**env, VARIABLE: running.token},
                cwd=cwd,
                on_stdout=running.stdout.feed,
                on_stderr=running.stderr.feed,
                **_NO_DEADLINE,
                retain_output=False,
            ),
            doing="starting a command",
        )
        return running.handle

    async def _wait(self, running: _Command, handle: Any) -> int:
        """Return the exit code as soon as the command or its streams have ended."""
        exited = self._lifecycle.adapter.sdk.CommandExitException
        with running.until_marked:
            try:
                result = await self._lifecycle.call(
                    handle.wait, doing="waiting for a command", timeout=math.inf, passing=(exited,)
                )
                code = int(result.exit_code)
            except exited as exc:
                code = int(exc.exit_code)
            running.stdout.close()
            running.stderr.close()
            # Its own shell was killed, or replaced: then only the service knows.
            return code if code >= 0 else KILLED if code == -1 else 128 - code
        return running.stdout.exit_code or 0

    async def _kill(self, running: _Command) -> None:
        """End all processes of the command. Bounded in time."""
        if not self._lifecycle.is_alive:
            return
        pid = running.handle.pid if running.handle is not None else "none"
        script = _KILL.format(pid=pid, variable=VARIABLE, token=running.token)
        with suppress(SandboxError), anyio.move_on_after(KILL_S):
            # As root, because a command may have used sudo; not every template has root.
            for user in ("root", None):
                if await self._run_quietly(script, user):
                    return
            if running.handle is not None:
                await self._lifecycle.call(running.handle.kill, doing="killing a command")
        log.warning("processes of a command in sandbox %s may still run", self._lifecycle.remote.sandbox_id)

    async def _run_quietly(self, script: str, user: str | None) -> bool:
        try:
            await self._lifecycle.call(
                lambda: self._commands.run(script, user=user, retain_output=False, **_NO_DEADLINE),
                doing="killing a command",
                timeout=KILL_S / 3,
            )
        except SandboxLost:
            raise
        except SandboxError as exc:
            log.debug("killing a command as user %s: %s", user or "default", exc)
            return False
        return True


class _Command:
    """One running command."""

    def __init__(self, output_bytes: int) -> None:
        self.token = secrets.token_hex(12)
        self.handle: Any = None
        self.until_marked = anyio.CancelScope()
        mark = f"\x1e{self.token}:"
        self.stdout = MarkedStream(output_bytes, mark, self._on_mark)
        self.stderr = MarkedStream(output_bytes, mark, self._on_mark)

    def wrapped(self, command: str) -> str:
        half, other = self.token[:12], self.token[12:]
        return _WRAPPED.format(command=shlex.quote(command), half=f"$'\\x1e'{half}", other=f"{other}:")

    def result(self, exit_code: int, *, timed_out: bool) -> CommandResult:
        self.stdout.close()
        self.stderr.close()
        out, err = self.stdout.kept, self.stderr.kept
        return CommandResult(
            stdout=out.text,
            stderr=err.text,
            exit_code=exit_code,
            timed_out=timed_out,
            dropped_bytes=out.dropped_bytes + err.dropped_bytes,
        )

    async def disconnect(self) -> None:
        """Stop listening. Processes that still run go on."""
        if self.handle is not None and self.handle.exit_code is None:
            with suppress(Exception), anyio.move_on_after(DISCONNECT_S, shield=True):
                await self.handle.disconnect()

    def _on_mark(self) -> None:
        if self.stdout.exit_code is not None and self.stderr.exit_code is not None:
            self.until_marked.cancel()
