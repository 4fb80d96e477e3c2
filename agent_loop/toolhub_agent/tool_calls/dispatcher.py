"""One turn's calls: found in the stream, started as soon as they may start, and their outcomes handed out.

Everything is decided synchronously in `feed`, `finish` and `cancel`. The tasks they start live in a task group that the
context manager owns. A call reader finds the calls; `ToolJobs` keeps them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from types import TracebackType
from typing import Any, Literal

import anyio
import anyio.lowlevel

from toolhub_agent.tool_calls.arguments import ParseEnd
from toolhub_agent.tool_calls.catalog import ToolCatalog
from toolhub_agent.tool_calls.native_calls import NativeCallReader
from toolhub_agent.tool_calls.xml_calls import XmlCallReader
from toolhub_agent.types import Delta, Json, ToolCall, ToolOutcome

# --- Values -----------------------------------------------------------------------------------------------------------
# The values around one turn of calls: what is executed, and what is told.

Execute = Callable[[ToolCall], Awaitable[ToolOutcome]]


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call is being executed now. early: the model was still writing."""

    call: ToolCall
    early: bool


@dataclass(frozen=True, slots=True)
class CallFinished:
    """A call has its outcome; none comes for a call that was cancelled."""

    outcome: ToolOutcome


CallEvent = CallStarted | CallFinished


@dataclass(frozen=True, slots=True)
class TurnCalls:
    """The calls of a finished turn.

    calls: in order, with corrected names. native: the API's tool calls, as they go into history. problem: a call was
    begun and never completed. format_error: there is not even one complete call. is_void: nothing was run, or what
    had run was cancelled: because of the problem, or because `cancel()` was called.
    """

    calls: tuple[ToolCall, ...] = ()
    native: tuple[Json, ...] = ()
    problem: str | None = None
    format_error: bool = False
    is_void: bool = False


# --- What a stream gives ----------------------------------------------------------------------------------------------
# Whatever a stream gives -> `Delta`: plain text, our own deltas, chunks of the `openai` SDK or their deltas.

_NOTHING = Delta()


def as_delta(piece: Any) -> Delta:
    """Only the first choice is read; what has neither text nor calls is an empty delta."""
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
# The calls of one turn on their way, and the iterator over their outcomes.
#
# Who reads outcomes is woken by an event that is replaced at every change.


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
    """One call. independent: it may overlap with its like. ended: nothing of it runs any more, or ever will."""

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
        """Forget its outcome and cancel it if it runs."""
        if self.state is JobState.DROPPED:
            return
        if self.state is JobState.HELD:
            self.ended.set()
        self.move(JobState.DROPPED)
        self.scope.cancel()


class ToolJobs:
    """The jobs of a turn by their calls' index. A withdrawn native call comes back as a new job with the same index."""

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
        """The call is none; unknown ones were withdrawn before they were added."""
        if (job := self._standing.pop(index, None)) is not None:
            job.drop()
            self._withdrawn[index] = job
            self._wake()

    def before(self, job: ToolJob) -> list[ToolJob]:
        """What must have ended before it may run: changes that earlier calls make on its server, and its forerunner."""
        earlier = [
            other
            for other in self._standing.values()
            if other.call.index < job.call.index and other.call.server == job.call.server and not other.independent
        ]
        forerunner = self._withdrawn.get(job.call.index)
        return earlier if forerunner is None else [*earlier, forerunner]

    def complete(self, job: ToolJob, outcome: ToolOutcome) -> bool:
        """Keep an outcome; False if the job was dropped, and did not mind being cancelled."""
        if job.state is not JobState.STARTED:
            return False
        job.outcome = outcome
        job.move(JobState.DONE)
        self._completed.append(job)
        self._wake()
        return True

    def close(self) -> None:
        """No more calls will be added."""
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
        """Whether no outcome will follow those that are there."""
        return self._is_stopped or (
            self._is_complete and all(job.state is JobState.DONE for job in self._standing.values())
        )

    def next_in_call_order(self, place: int) -> tuple[int, ToolOutcome | None]:
        """(where to go on, the outcome of the first call from there), None: there is none yet."""
        last = max(self._standing, default=-1)
        while self._is_complete and place <= last and place not in self._standing:
            place += 1  # only the end tells that a place stays empty
        job = self._standing.get(place)
        if job is None or job.state is not JobState.DONE:
            return place, None
        return place + 1, job.outcome

    def next_completed(self, place: int) -> tuple[int, ToolOutcome | None]:
        """The same over the outcomes as they came in."""
        for number, job in enumerate(self._completed[place:], place):
            if job.state is JobState.DONE:
                return number + 1, job.outcome
        return len(self._completed), None

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class Outcomes(AsyncIterator[ToolOutcome]):
    """Outcomes as they become known. Not a generator: leaving it early leaves nothing behind that must be closed."""

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
# One turn: calls are found in the stream, started when they may, and their outcomes handed out.
#
# Everything is decided synchronously in `feed`, `finish` and `cancel`; the tasks they start live in a task group that
# the context manager owns. `reader` finds the calls, `ToolJobs` keeps them.

logger = logging.getLogger("toolhub.agent.dispatch")
# Of an exception's text in an error result; a model reads it, and some exceptions carry whole pages.
_ERROR_CHARS = 4000


class Dispatcher:
    """One turn of an agent. `async with` it, `feed` it, `finish` it, read `results()`; leaving cancels what runs.

    execute: runs one call; an exception of it becomes an error outcome. catalog: corrects names and tells what is
    read-only. eager: which calls may start before the turn ends. parallel: calls at once. tolerant: complete calls of a
    turn with a parse problem are run all the same. on_event: told of `CallStarted` and `CallFinished`; must not wait.
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
        on_event: Callable[[CallEvent], None] | None = None,
    ) -> None:
        self._execute = execute
        self._catalog = catalog
        self._reader = XmlCallReader() if protocol == "xml" else NativeCallReader(catalog.split)
        self._eager = eager
        self._order = order
        self._tolerant = tolerant
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
        native = self._reader.calls() if isinstance(self._reader, NativeCallReader) else ()
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
                if self._jobs.complete(job, outcome):
                    self._tell(CallFinished(outcome))
        finally:
            job.ended.set()

    async def _outcome_of(self, call: ToolCall) -> ToolOutcome:
        if call.problem is not None:
            return _failed(call, call.problem)
        early, began = self._end is None, anyio.current_time()
        self._tell(CallStarted(call, early))
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

    def _tell(self, event: CallEvent) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            logger.exception("an observer of calls raised")  # its trouble must not become the call's


def _failed(call: ToolCall, why: str) -> ToolOutcome:
    """The reason alone; who writes history puts it into words."""
    return ToolOutcome(call, why[:_ERROR_CHARS], is_error=True)
