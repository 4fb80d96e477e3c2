"""Runs one turn's calls: finds them in the stream, starts each as soon as it may start, and returns their outcomes.

`feed`, `finish` and `cancel` decide everything synchronously. The tasks that they start live in a task group that the
context manager owns. A call reader finds the calls. `ToolJobs` keeps them.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from types import TracebackType
from typing import Any, Literal

import anyio
import anyio.lowlevel

from toolhub_agent.errors import ToolFailed
from toolhub_agent.tool_calls.arguments import ParseEnd, complete_arguments
from toolhub_agent.tool_calls.catalog import ToolCatalog
from toolhub_agent.tool_calls.native_calls import NativeCallReader
from toolhub_agent.tool_calls.xml_calls import XmlCallReader
from toolhub_agent.types import Delta, Json, ToolCall, ToolOutcome

# --- Values -----------------------------------------------------------------------------------------------------------

Execute = Callable[[ToolCall], Awaitable[str]]
"""Runs one call and returns its result for the model. Raises `ToolFailed`, or anything else, if the call fails."""


Prefetch = Callable[[str, str, Json], Awaitable[None]]
"""Announces a call that is still being written: server, tool, and the arguments that are complete."""


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call starts to run. early: the model is still writing."""

    call: ToolCall
    early: bool


@dataclass(frozen=True, slots=True)
class CallFinished:
    """A call has its outcome. A cancelled call has no such event."""

    outcome: ToolOutcome


CallEvent = CallStarted | CallFinished


@dataclass(frozen=True, slots=True)
class TurnCalls:
    """The calls of a finished turn.

    calls: in order, with corrected names. native: the API's tool calls, as they go into history. problem: a call was
    begun and never completed. format_error: there is no complete call at all. is_void: no outcome
    counts, because of the problem or because of `cancel()`.
    """

    calls: tuple[ToolCall, ...] = ()
    native: tuple[Json, ...] = ()
    problem: str | None = None
    format_error: bool = False
    is_void: bool = False


# --- Pieces of a stream -----------------------------------------------------------------------------------------------
# Converts a stream's pieces into `Delta`: plain text, our own deltas, chunks of the `openai` SDK or their deltas.


_NOTHING = Delta()


def as_delta(piece: Any) -> Delta:
    """The piece as a `Delta`. Only the first choice is read. A piece without text and calls is an empty delta."""
    if isinstance(piece, Delta):
        return piece
    if isinstance(piece, str):
        return Delta(text=piece)
    if hasattr(piece, "choices"):
        first = next((choice for choice in piece.choices or () if not choice.index), None)
        return _NOTHING if first is None or first.delta is None else as_delta(first.delta)
    calls = getattr(piece, "tool_calls", None) or ()
    return Delta(text=getattr(piece, "content", None) or "", tool_calls=tuple(map(_call_delta, calls)))


def _call_delta(call: Any) -> Json:
    function = call.function
    return {
        "index": call.index,
        "id": call.id,
        "function": {"name": function.name, "arguments": function.arguments} if function is not None else {},
    }


# --- The calls of a turn ----------------------------------------------------------------------------------------------
# The jobs of one turn, and the iterator over their outcomes. Every change sets an event, which wakes the readers.


class JobState(Enum):
    HELD = auto()
    STARTED = auto()
    DONE = auto()
    DROPPED = auto()


_NEXT = {
    JobState.HELD: {JobState.STARTED, JobState.DROPPED},
    JobState.STARTED: {JobState.DONE, JobState.DROPPED},
    JobState.DONE: {JobState.DROPPED},
    JobState.DROPPED: set[JobState](),
}


@dataclass(eq=False)
class ToolJob:
    """One call. independent: may overlap with other independent calls. ended: it does not run, and never will."""

    call: ToolCall
    read_only: bool = False
    independent: bool = False
    state: JobState = JobState.HELD
    outcome: ToolOutcome | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)

    def __repr__(self) -> str:
        return f"<{self.call.index} {self.call.server}/{self.call.tool} {self.state.name.lower()}>"

    def move(self, state: JobState) -> None:
        assert state in _NEXT[self.state], f"{self!r} cannot become {state.name}"
        self.state = state

    def drop(self) -> None:
        """Drop its outcome and cancel it if it runs."""
        if self.state is JobState.DROPPED:
            return
        if self.state is JobState.HELD:
            self.ended.set()
        self.move(JobState.DROPPED)
        self.scope.cancel()


class ToolJobs:
    """The jobs of a turn by call index. A withdrawn native call comes back as a new job with the same index."""

    def __init__(self) -> None:
        self._standing: dict[int, ToolJob] = {}
        self._withdrawn: dict[int, ToolJob] = {}
        self._completed: list[ToolJob] = []
        self._is_complete = False
        self._is_stopped = False
        self._changed = anyio.Event()

    def __repr__(self) -> str:
        return repr(self.in_order())

    def in_order(self) -> list[ToolJob]:
        return [self._standing[index] for index in sorted(self._standing)]

    def add(self, job: ToolJob) -> None:
        self._standing[job.call.index] = job

    def withdraw(self, index: int) -> None:
        """Drop a call that turned out not to be one. An unknown index was withdrawn before it was added."""
        if (job := self._standing.pop(index, None)) is not None:
            job.drop()
            self._withdrawn[index] = job
            self._wake()

    def before(self, job: ToolJob) -> list[ToolJob]:
        """Jobs that must end first: changes by earlier calls on the same server, and a withdrawn job of this index."""
        earlier = [
            other
            for other in self._standing.values()
            if other.call.index < job.call.index and other.call.server == job.call.server and not other.independent
        ]
        forerunner = self._withdrawn.get(job.call.index)
        return earlier if forerunner is None else [*earlier, forerunner]

    def complete(self, job: ToolJob, outcome: ToolOutcome) -> bool:
        """Store an outcome. Return False if the job was dropped but ended in spite of its cancellation."""
        if job.state is not JobState.STARTED:
            return False
        job.outcome = outcome
        job.move(JobState.DONE)
        self._completed.append(job)
        self._wake()
        return True

    def close(self) -> None:
        """Declare that no more calls will be added."""
        self._is_complete = True
        self._wake()

    def stop(self) -> None:
        """Drop everything."""
        self._is_stopped = True
        for job in self._standing.values():
            job.drop()
        self._wake()

    async def wait_change(self) -> None:
        await self._changed.wait()

    def is_over(self) -> bool:
        """Whether no further outcome will come."""
        return self._is_stopped or (
            self._is_complete and all(job.state is JobState.DONE for job in self._standing.values())
        )

    def next_in_call_order(self, place: int) -> tuple[int, ToolOutcome | None]:
        """(where to continue, the outcome of the first call from there); None if there is none yet."""
        last = max(self._standing, default=-1)
        while self._is_complete and place <= last and place not in self._standing:
            place += 1  # only after the end is it certain that a place stays empty
        job = self._standing.get(place)
        if job is None or job.state is not JobState.DONE:
            return place, None
        return place + 1, job.outcome

    def next_completed(self, place: int) -> tuple[int, ToolOutcome | None]:
        """The same over the outcomes in the order of completion."""
        for number, job in enumerate(self._completed[place:], place):
            if job.state is JobState.DONE:
                return number + 1, job.outcome
        return len(self._completed), None

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class Outcomes(AsyncIterator[ToolOutcome]):
    """Outcomes as they arrive. It is not a generator, so a reader that stops early has nothing to close."""

    def __init__(self, jobs: ToolJobs, *, in_call_order: bool) -> None:
        self._jobs = jobs
        self._next = jobs.next_in_call_order if in_call_order else jobs.next_completed
        self._place = 0

    async def __anext__(self) -> ToolOutcome:
        while True:
            self._place, outcome = self._next(self._place)
            if outcome is not None:
                return outcome
            if self._jobs.is_over():
                raise StopAsyncIteration
            await self._jobs.wait_change()


# --- The dispatcher ---------------------------------------------------------------------------------------------------


logger = logging.getLogger("toolhub.agent.dispatch")
# How much of an unexpected exception's text an error result contains: some exceptions hold whole pages.
_ERROR_CHARS = 4000


class Dispatcher:
    """One turn of an agent: `async with` it, `feed` it, `finish` it, read `results()`. Leaving cancels running calls.

    async with Dispatcher(execute, catalog) as turn:
        async for piece in stream:
            turn.feed(piece)
        await turn.finish()
        results = [outcome.text async for outcome in turn.results()]

    The dispatcher alone measures calls, notes whether they started early, and makes error outcomes of exceptions.

    execute: runs one call and returns the text of its result. catalog: corrects names and knows which tools are
    read-only. eager: which calls may start before the turn ends. parallel: calls at once. tolerant: if the turn has a
    parse problem, its complete calls run nevertheless. prefetch: is told of a call before it is complete, if its tool
    can use that. on_event: called with `CallStarted` and `CallFinished`; if it returns an awaitable, the call waits
    for it.
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
        prefetch: Prefetch | None = None,
        on_event: Callable[[CallEvent], Any] | None = None,
    ) -> None:
        self._execute = execute
        self._catalog = catalog
        self._reader = XmlCallReader() if protocol == "xml" else NativeCallReader(catalog.split)
        self._eager = eager
        self._order = order
        self._tolerant = tolerant
        self._prefetch = prefetch
        self._announced = -1
        self._on_event = on_event
        self._slots = anyio.CapacityLimiter(parallel)
        self._group = anyio.create_task_group()
        self._jobs = ToolJobs()
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
        # The block's own error is not passed to the group, which would wrap it in an exception group.
        await self._group.__aexit__(None, None, None)

    def feed(self, piece: Delta | str | Any) -> None:
        """Read the next piece of the stream and start the calls that may start.

        piece: text, a `Delta`, or a chunk of the openai SDK. After `finish` or `cancel` it is ignored.
        """
        if self._is_stopped or self._end is not None:
            return
        calls = self._read(as_delta(piece))
        for call in calls:
            self._add(call)
        if self._prefetch is not None:
            self._announce(self._prefetch)
        self._withdraw()  # after adding: one piece may complete a call and withdraw it
        if calls or self._growing != self._reader.growing:
            self._growing = self._reader.growing
            self._start_held()

    async def finish(self, run: bool = True) -> TurnCalls:
        """End the stream: start the remaining calls and return all calls.

        run: with False no more calls start, and running calls go on. Then call it again to start the rest, or
        `cancel()`.
        """
        await anyio.lowlevel.checkpoint()
        if self._end is None:
            self._end = self._close()
        if run:
            self._start_held()
        native = self._reader.calls() if isinstance(self._reader, NativeCallReader) else ()
        calls = tuple(job.call for job in self._jobs.in_order())
        return TurnCalls(calls, native, self._end.problem, self._end.format_error, self._is_stopped)

    def results(self) -> Outcomes:
        """Every call's outcome as soon as it is known, in call order or as completed. Ends with the turn.

        It may be read while the stream still runs; a call may then be withdrawn later. After `cancel()` there are no
        more outcomes. After `finish(run=False)` it waits for the second `finish`.
        """
        return Outcomes(self._jobs, in_call_order=self._order == "call")

    def cancel(self) -> None:
        """Give up the turn (rollback, stop): cancel running calls and drop every outcome. Does not wait."""
        self._is_stopped = True
        self._jobs.stop()

    def _announce(self, prefetch: Prefetch) -> None:
        """Announce the call that is being written, once its tool can begin with the arguments that are complete."""
        unfinished = self._reader.unfinished
        if unfinished is None or unfinished[0] == self._announced:
            return
        index, server, tool, text = unfinished
        server, tool, _ = self._catalog.correct(server, tool, {})
        entry = self._catalog.find(server, tool)
        if entry is None or not entry.prefetch:
            self._announced = index
            return
        arguments = complete_arguments(text)
        if entry.prefetch <= arguments.keys():
            self._announced = index
            self._group.start_soon(self._announced_to, prefetch, server, tool, arguments)

    async def _announced_to(self, prefetch: Prefetch, server: str, tool: str, arguments: Json) -> None:
        try:
            await prefetch(server, tool, arguments)
        except Exception:
            logger.debug("prefetch for %s/%s raised", server, tool, exc_info=True)  # the call itself will say why

    def _read(self, delta: Delta) -> list[ToolCall]:
        if isinstance(self._reader, XmlCallReader):
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
        job = ToolJob(
            replace(call, server=server, tool=tool, arguments=arguments),
            read_only=self._catalog.is_read_only(server, tool),
            independent=self._catalog.is_independent(server, tool),
        )
        self._jobs.add(job)

    def _start_held(self) -> None:
        if self._is_stopped:
            return
        for job in self._jobs.in_order():
            if job.state is JobState.HELD and self._may_start(job):
                job.move(JobState.STARTED)
                self._group.start_soon(self._run, job, self._jobs.before(job))

    def _may_start(self, job: ToolJob) -> bool:
        if self._end is not None:
            return True
        if self._eager == "none" or job.call.problem is not None:
            return False
        return job.read_only or (self._eager == "all" and job.call.index != self._growing)

    async def _run(self, job: ToolJob, earlier: list[ToolJob]) -> None:
        try:
            with job.scope:
                for other in earlier:
                    await other.ended.wait()
                async with self._slots:
                    outcome = await self._outcome_of(job.call)
                if job.state is JobState.STARTED:
                    await self._notify(CallFinished(outcome))
                self._jobs.complete(job, outcome)
        finally:
            job.ended.set()

    async def _outcome_of(self, call: ToolCall) -> ToolOutcome:
        early = self._end is None
        await self._notify(CallStarted(call, early))
        began = anyio.current_time()
        text, is_error = await self._result_of(call)
        return ToolOutcome(call, text, is_error, seconds=anyio.current_time() - began, started_early=early)

    async def _result_of(self, call: ToolCall) -> tuple[str, bool]:
        """(text, whether it is an error). Raises nothing except this task's own cancellation."""
        if call.problem is not None:
            return call.problem, True
        try:
            text = await self._execute(call)
            if not isinstance(text, str):
                raise TypeError(f"execute returned {type(text).__name__}, not the text of a result")
            return text, False
        except ToolFailed as exc:
            return str(exc), True
        except Exception as exc:
            logger.debug("call of %s/%s raised", call.server, call.tool, exc_info=True)
            return (str(exc) or type(exc).__name__)[:_ERROR_CHARS], True
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:
                raise
            # This task was not cancelled: a library leaked a cancellation of its own. The other calls must go on.
            return "it was cancelled", True

    async def _notify(self, event: CallEvent) -> None:
        if self._on_event is None:
            return
        try:
            waiting = self._on_event(event)
            if inspect.isawaitable(waiting):
                await waiting
        except Exception:
            logger.exception("an observer of calls raised")  # its error must not fail the call
