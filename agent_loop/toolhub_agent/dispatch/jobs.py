"""The calls of one turn on their way, and the iterator over their outcomes.

Who reads outcomes is woken by an event that is replaced at every change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum, auto

import anyio

from toolhub_agent.model import ToolCall, ToolOutcome


class State(Enum):
    HELD = auto()
    STARTED = auto()
    DONE = auto()
    DROPPED = auto()


_NEXT = {
    State.HELD: {State.STARTED, State.DROPPED},
    State.STARTED: {State.DONE, State.DROPPED},
    State.DONE: {State.DROPPED},
    State.DROPPED: set[State](),
}


@dataclass(eq=False)
class Job:
    """One call. independent: it may overlap with its like. ended: nothing of it runs any more, or ever will."""

    call: ToolCall
    read_only: bool = False
    independent: bool = False
    state: State = State.HELD
    outcome: ToolOutcome | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)

    def __repr__(self) -> str:
        return f"<{self.call.index} {self.call.server}/{self.call.tool} {self.state.name.lower()}>"

    def move(self, state: State) -> None:
        assert state in _NEXT[self.state], f"{self!r} cannot become {state.name}"
        self.state = state

    def drop(self) -> None:
        """Forget its outcome and cancel it if it runs."""
        if self.state is State.DROPPED:
            return
        if self.state is State.HELD:
            self.ended.set()
        self.move(State.DROPPED)
        self.scope.cancel()


class Jobs:
    """The jobs of a turn by their calls' index. A withdrawn native call comes back as a new job with the same index."""

    def __init__(self) -> None:
        self._standing: dict[int, Job] = {}
        self._withdrawn: dict[int, Job] = {}
        self._completed: list[Job] = []
        self._is_complete = False
        self._is_stopped = False
        self._changed = anyio.Event()

    def __repr__(self) -> str:
        return repr(self.in_order())

    def in_order(self) -> list[Job]:
        return [self._standing[index] for index in sorted(self._standing)]

    def add(self, job: Job) -> None:
        self._standing[job.call.index] = job

    def withdraw(self, index: int) -> None:
        """The call is none; unknown ones were withdrawn before they were added."""
        if (job := self._standing.pop(index, None)) is not None:
            job.drop()
            self._withdrawn[index] = job
            self._wake()

    def before(self, job: Job) -> list[Job]:
        """What must have ended before it may run: changes that earlier calls make on its server, and its forerunner."""
        earlier = [
            other
            for other in self._standing.values()
            if other.call.index < job.call.index and other.call.server == job.call.server and not other.independent
        ]
        forerunner = self._withdrawn.get(job.call.index)
        return earlier if forerunner is None else [*earlier, forerunner]

    def complete(self, job: Job, outcome: ToolOutcome) -> bool:
        """Keep an outcome; False if the job was dropped, and did not mind being cancelled."""
        if job.state is not State.STARTED:
            return False
        job.outcome = outcome
        job.move(State.DONE)
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
            self._is_complete and all(job.state is State.DONE for job in self._standing.values())
        )

    def next_in_call_order(self, place: int) -> tuple[int, ToolOutcome | None]:
        """(where to go on, the outcome of the first call from there), None: there is none yet."""
        last = max(self._standing, default=-1)
        while self._is_complete and place <= last and place not in self._standing:
            place += 1  # only the end tells that a place stays empty
        job = self._standing.get(place)
        if job is None or job.state is not State.DONE:
            return place, None
        return place + 1, job.outcome

    def next_completed(self, place: int) -> tuple[int, ToolOutcome | None]:
        """The same over the outcomes as they came in."""
        for number, job in enumerate(self._completed[place:], place):
            if job.state is State.DONE:
                return number + 1, job.outcome
        return len(self._completed), None

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class Outcomes(AsyncIterator[ToolOutcome]):
    """Outcomes as they become known. Not a generator: leaving it early leaves nothing behind that must be closed."""

    def __init__(self, jobs: Jobs, *, in_call_order: bool) -> None:
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
