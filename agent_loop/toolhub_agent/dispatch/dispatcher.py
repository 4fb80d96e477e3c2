"""One turn: calls are found in the stream, started when they may, and their outcomes handed out.

Everything is decided synchronously in `feed`, `finish` and `cancel`; the tasks they start live in a task group that
the context manager owns. `reader` finds the calls, `Jobs` keeps them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal

import anyio
import anyio.lowlevel

from toolhub_agent.dispatch.jobs import Job, Jobs, Outcomes, State
from toolhub_agent.dispatch.pieces import as_delta
from toolhub_agent.dispatch.turn import Event, Execute, Finished, Started, TurnCalls
from toolhub_agent.model import Delta, ToolCall, ToolOutcome
from toolhub_agent.protocol.catalog import ToolCatalog
from toolhub_agent.protocol.native import NativeReader
from toolhub_agent.protocol.reader import ParseEnd
from toolhub_agent.protocol.xml import XmlReader

logger = logging.getLogger("toolhub.agent.dispatch")
# Of an exception's text in an error result; a model reads it, and some exceptions carry whole pages.
_ERROR_CHARS = 4000


class Dispatcher:
    """One turn of an agent. `async with` it, `feed` it, `finish` it, read `results()`; leaving cancels what runs.

    execute: runs one call; an exception of it becomes an error outcome. catalog: corrects names and tells what is
    read-only. eager: which calls may start before the turn ends. parallel: calls at once. tolerant: complete calls of a
    turn with a parse problem are run all the same. on_event: told of `Started` and `Finished`; must not wait.
    """

    def __init__(
        self,
        execute: Execute,
        catalog: ToolCatalog,
        *,
        protocol: Literal["xml", "native"] = "xml",
        eager: Literal["none", "read_only", "all"] = "read_only",
        order: Literal["call", "completed"] = "call",
        parallel: int = 8,
        tolerant: bool = False,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self._execute = execute
        self._catalog = catalog
        self._reader = XmlReader() if protocol == "xml" else NativeReader(catalog.split)
        self._eager = eager
        self._order = order
        self._tolerant = tolerant
        self._on_event = on_event
        self._slots = anyio.CapacityLimiter(parallel)
        self._group = anyio.create_task_group()
        self._jobs = Jobs()
        self._growing: int | None = None
        self._end: ParseEnd | None = None
        self._is_stopped = False

    def __repr__(self) -> str:
        phase = "stopped" if self._is_stopped else "streaming" if self._end is None else "finished"
        return f"<Dispatcher {phase} {self._jobs!r}>"

    async def __aenter__(self) -> Dispatcher:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
        # The group never hears of the block's own error, which would come out wrapped into an exception group.
        await self._group.__aexit__(None, None, None)

    def feed(self, piece: Delta | str | Any) -> None:
        """Take the next piece of the stream and start what may start: text, a `Delta`, or a chunk of the openai SDK.

        After `finish` and after `cancel` nothing is read any more.
        """
        if self._is_stopped or self._end is not None:
            return
        calls = self._read(as_delta(piece))
        for call in calls:
            self._add(call)
        self._withdraw()  # after the adding: a call may be found and withdrawn in one piece
        if calls or self._growing != self._reader.growing:
            self._growing = self._reader.growing
            self._start_held()

    async def finish(self, run: bool = True) -> TurnCalls:
        """The stream has ended: start the rest and tell which calls there are.

        run: with False nothing more is started; call it again to start the rest, or `cancel()`. What runs goes on.
        """
        await anyio.lowlevel.checkpoint()
        if self._end is None:
            self._end = self._close()
        if run:
            self._start_held()
        native = self._reader.calls() if isinstance(self._reader, NativeReader) else ()
        calls = tuple(job.call for job in self._jobs.in_order())
        return TurnCalls(calls, native, self._end.problem, self._end.format_error, self._is_stopped)

    def results(self) -> Outcomes:
        """Every call's outcome, in call order or as completed, each as soon as it is known; ends with the turn.

        May be read while the stream still runs; a call may then still turn out to be none. After `cancel()` there are
        no more outcomes. After `finish(run=False)` it waits for the second `finish`.
        """
        return Outcomes(self._jobs, in_call_order=self._order == "call")

    def cancel(self) -> None:
        """Give the turn up (rollback, stop): cancel what runs, drop every outcome. Does not wait."""
        self._is_stopped = True
        self._jobs.stop()

    def _read(self, delta: Delta) -> list[ToolCall]:
        if isinstance(self._reader, XmlReader):
            return self._reader.feed(delta.text)
        calls = self._reader.dispatched(delta.dispatched) if delta.dispatched is not None else []
        return calls + self._reader.feed(delta.tool_calls)

    def _close(self) -> ParseEnd:
        end = self._reader.close()
        self._withdraw()
        for call in end.calls:
            self._add(call)
        self._jobs.close()
        if end.problem is not None and not self._tolerant:
            self.cancel()
        return end

    def _withdraw(self) -> None:
        for index in self._reader.take_withdrawn():
            self._jobs.withdraw(index)

    def _add(self, call: ToolCall) -> None:
        server, tool, arguments = self._catalog.correct(call.server, call.tool, call.arguments)
        if call.problem is not None:
            arguments = {}
        job = Job(
            replace(call, server=server, tool=tool, arguments=arguments),
            read_only=self._catalog.is_read_only(server, tool),
            independent=self._catalog.is_independent(server, tool),
        )
        self._jobs.add(job)

    def _start_held(self) -> None:
        if self._is_stopped:
            return
        for job in self._jobs.in_order():
            if job.state is State.HELD and self._may_start(job):
                job.move(State.STARTED)
                self._group.start_soon(self._run, job, self._jobs.before(job))

    def _may_start(self, job: Job) -> bool:
        if self._end is not None:
            return True
        if self._eager == "none" or job.call.problem is not None:
            return False
        return job.read_only or (self._eager == "all" and job.call.index != self._growing)

    async def _run(self, job: Job, earlier: list[Job]) -> None:
        try:
            with job.scope:
                for other in earlier:
                    await other.ended.wait()
                async with self._slots:
                    outcome = await self._outcome_of(job.call)
                if self._jobs.complete(job, outcome):
                    self._tell(Finished(outcome))
        finally:
            job.ended.set()

    async def _outcome_of(self, call: ToolCall) -> ToolOutcome:
        if call.problem is not None:
            return _failed(call, call.problem)
        early, began = self._end is None, anyio.current_time()
        self._tell(Started(call, early))
        try:
            outcome = await self._execute(call)
            seconds = outcome.seconds or anyio.current_time() - began
            return replace(outcome, seconds=seconds, started_early=early)
        except Exception as exc:
            logger.debug("call of %s/%s raised", call.server, call.tool, exc_info=True)
            failed = _failed(call, str(exc) or type(exc).__name__)
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:
                raise
            # Nobody cancelled us: a library let a cancellation of its own escape. It must not cost the other calls.
            failed = _failed(call, "it was cancelled")
        return replace(failed, seconds=anyio.current_time() - began, started_early=early)

    def _tell(self, event: Event) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            logger.exception("an observer of calls raised")  # its trouble must not become the call's


def _failed(call: ToolCall, why: str) -> ToolOutcome:
    """The reason alone; who writes history puts it into words."""
    return ToolOutcome(call, why[:_ERROR_CHARS], is_error=True)
