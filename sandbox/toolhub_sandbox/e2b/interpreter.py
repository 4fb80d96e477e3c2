"""The code interpreter of one sandbox: runs code one piece after the other, and keeps its variables.

The service has no request for interrupting. It interrupts the code when the connection of the request breaks (the SDK
keeps HTTP/1.1 for these requests so that this works). So a timeout, `interrupt()` and a cancellation break it. Older
templates do not interrupt then, and code can swallow a KeyboardInterrupt. So afterwards the interpreter is asked for
its process id. The same id in time means that its state is kept; otherwise the context is restarted. Only this question
is ever sent twice, never a caller's code.

The service silently replaces a kernel that dies between two pieces of code. The new one counts from 1 again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio

from toolhub_sandbox.e2b.lifecycle import Lifecycle
from toolhub_sandbox.e2b.output import CappedText
from toolhub_sandbox.errors import SandboxError, SandboxLimit, SandboxLost, SandboxUnavailable
from toolhub_sandbox.model import Display, Execution, Failure, State

# An interrupt takes milliseconds; code that cleans up after itself gets this long before its interpreter is replaced.
INTERRUPT_S = 3.0
# A late interrupt may hit the question instead of the code.
ASK_TIMES = 5
ASK_AGAIN_S = 0.05
# Importing what a profile preloads, on a machine that has just started.
PREPARE_S = 60.0

StopReason = Literal["timeout", "interrupt"]

_ASK = "print(__import__('os').getpid())"
_PREPARE = "any(__import__('importlib').import_module(name) is None for name in {modules!r})\n" + _ASK
_MIME = {
    "text": "text/plain",
    "html": "text/html",
    "markdown": "text/markdown",
    "svg": "image/svg+xml",
    "png": "image/png",
    "jpeg": "image/jpeg",
    "pdf": "application/pdf",
    "latex": "text/latex",
    "json": "application/json",
    "javascript": "application/javascript",
}


def display_of(result: Any) -> Display:
    """Return the SDK's `Result` as MIME types."""
    named = {mime: getattr(result, name, None) for name, mime in _MIME.items()}
    found = {mime: value for mime, value in {**named, **(result.extra or {})}.items() if value is not None}
    data = {mime: value if isinstance(value, str) else json.dumps(value) for mime, value in found.items()}
    return Display(data=data, is_result=bool(result.is_main_result))


@dataclass(slots=True)
class _Output:
    """The output of an execution so far. One that is stopped early has no other result."""

    stdout: CappedText
    stderr: CappedText
    displays: list[Display] = field(default_factory=list)
    error: Failure | None = None

    def on_error(self, error: Any) -> None:
        # The service's own errors have no traceback: its kernel died or was restarted under the code.
        if error.traceback:
            self.error = Failure(error.name, error.value, error.traceback)
        else:
            self.error = Failure("WorkerDied", f"{error.name}: {error.value}")


@dataclass(eq=False, slots=True)
class _Running:
    """The piece of code that is running now."""

    scope: anyio.CancelScope
    stopped: StopReason | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)


class E2BInterpreter:
    """One code context, replaced when it cannot be interrupted."""

    def __init__(self, lifecycle: Lifecycle, *, preload: Sequence[str], output_bytes: int) -> None:
        self._lifecycle = lifecycle
        self._remote = lifecycle.remote
        self._preload = tuple(preload)
        self._output_bytes = output_bytes
        self._turn = anyio.Lock()
        self._context: Any = None
        self._process_id: int | None = None
        """None: the interpreter must be replaced before the next use."""
        self._state: State = "kept"
        """`lost` until an execution has reported the loss."""
        self._count = 0
        """The kernel's own execution count. It includes our questions."""
        self._running: _Running | None = None
        self.executions = 0

    async def start(self) -> None:
        """Find the context that the sandbox came with, and load the modules.

        Raises SandboxUnavailable if a module cannot be loaded, SandboxError.
        """
        contexts = await self._lifecycle.call(self._remote.list_code_contexts, doing="looking for the interpreter")
        self._context = next((context for context in contexts if context.language == "python"), None)
        if self._context is not None:
            try:
                await self._prepare()
                return
            except (SandboxLost, SandboxUnavailable):
                raise
            except SandboxError:  # some templates list an id that they then do not accept
                pass
        await self._make_context()

    async def run(self, code: str, *, timeout: float) -> Execution:
        """As `Sandbox.exec_code`."""
        async with self._turn:
            if self._process_id is None:
                await self._replace()
            output = _Output(CappedText(self._output_bytes), CappedText(self._output_bytes))
            self.executions += 1
            try:
                stopped = await self._execute(code, output, timeout)
            except SandboxLimit:  # it was not started
                self.executions -= 1
                raise
            except BaseException:
                await self._verify_state()
                raise
            if stopped or (output.error is not None and output.error.name == "WorkerDied"):
                await self._verify_state()
            return self._execution(output, stopped, timeout)

    async def interrupt(self) -> None:
        """As `Sandbox.interrupt`; returns when the code has ended."""
        if (running := self._running) is not None:
            running.stopped = running.stopped or "interrupt"
            running.scope.cancel()
            await running.ended.wait()

    async def _execute(self, code: str, output: _Output, timeout: float) -> StopReason | None:
        with anyio.move_on_after(timeout) as scope:
            running = self._running = _Running(scope)
            try:
                done = await self._lifecycle.call(
                    lambda: self._send(code, output), doing="running code", timeout=math.inf
                )
            finally:
                self._running = None
                running.ended.set()
        if scope.cancelled_caught:
            return running.stopped or "timeout"
        if self._is_new_kernel(done):
            await self._adopt()
        return None

    def _send(self, code: str, output: _Output) -> Any:
        return self._remote.run_code(
            code,
            context=self._context,
            on_stdout=lambda message: output.stdout.add(message.line),
            on_stderr=lambda message: output.stderr.add(message.line),
            on_result=lambda result: output.displays.append(display_of(result)),
            on_error=output.on_error,
            timeout=0,  # the deadline is ours: the SDK's has been twice what was asked
            request_timeout=self._lifecycle.adapter.timeout_s,
        )

    def _execution(self, output: _Output, stopped: StopReason | None, timeout: float) -> Execution:
        state, self._state = self._state, "kept"
        error = output.error
        if stopped == "timeout":
            error = Failure("ExecutionTimeout", f"the code ran longer than {timeout:g} s")
        elif stopped == "interrupt":
            error = Failure("Interrupted", "the code was interrupted")
        return Execution(
            stdout=output.stdout.text,
            stderr=output.stderr.text,
            displays=tuple(output.displays),
            error=error,
            state=state,
            timed_out=stopped == "timeout",
            dropped_bytes=output.stdout.dropped_bytes + output.stderr.dropped_bytes,
            number=self.executions,
        )

    def _is_new_kernel(self, done: Any) -> bool:
        before, self._count = self._count, done.execution_count or self._count + 1
        return self._count <= before

    async def _adopt(self) -> None:
        """Go on with the interpreter that the service has put in place of the old one."""
        self._state = "lost"
        with suppress(SandboxError):  # unprepared, it is replaced when its process id is next asked for
            await self._prepare()

    async def _verify_state(self) -> None:
        """After code was stopped early: keep the interpreter if it is the same process, else replace it. Bounded."""
        with anyio.CancelScope(shield=True), suppress(SandboxError):
            if not await self._is_same_process():
                self._state = "lost"
                await self._replace()

    async def _is_same_process(self) -> bool:
        with suppress(SandboxError), anyio.move_on_after(INTERRUPT_S):
            return await self._query_pid(_ASK) == self._process_id
        return False

    async def _replace(self) -> None:
        # Cleared first: if something fails below, the next execution replaces the interpreter again.
        self._process_id = None
        self._count = 0
        try:
            await self._lifecycle.call(
                lambda: self._remote.restart_code_context(self._context), doing="restarting the interpreter"
            )
            await self._prepare()
        except (SandboxLost, SandboxUnavailable):
            raise
        except SandboxError:
            useless = self._context
            await self._make_context()
            with suppress(SandboxError):
                await self._lifecycle.call(
                    lambda: self._remote.remove_code_context(useless), doing="removing an interpreter"
                )

    async def _make_context(self) -> None:
        self._count = 0
        self._context = await self._lifecycle.call(self._remote.create_code_context, doing="starting an interpreter")
        await self._prepare()

    async def _prepare(self) -> None:
        self._process_id = await self._query_pid(_PREPARE.format(modules=self._preload), timeout=PREPARE_S)

    async def _query_pid(self, question: str, *, timeout: float | None = None) -> int:
        """Return the number that `question` prints."""
        for _ in range(ASK_TIMES):
            answer = await self._lifecycle.call(
                lambda: self._remote.run_code(question, context=self._context, timeout=0),
                doing="asking the interpreter",
                timeout=timeout,
            )
            self._count = answer.execution_count or self._count + 1
            printed = "".join(answer.logs.stdout).split()
            if printed and printed[-1].isdigit():  # the preloaded modules may print, too
                return int(printed[-1])
            if answer.error is None or answer.error.name != "KeyboardInterrupt":
                break
            await anyio.sleep(ASK_AGAIN_S)
        problem = f"{answer.error.name}: {answer.error.value}" if answer.error else "no answer"
        if self._preload and question != _ASK:
            raise SandboxUnavailable(
                f"the profile preloads {', '.join(self._preload)}, which the E2B template cannot import ({problem}); "
                "use a template that has them (sandbox.e2b.template)"
            )
        raise SandboxError(f"the interpreter does not work: {problem}")
