"""The agent's side of the worker: runs one piece of code at a time, keeps deadlines, replaces a worker that is lost.

What Jupyter calls a kernel manager."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from toolhub_sandbox.inside import syscalls
from toolhub_sandbox.inside.frames import RECEIVE_BYTES, BadFrame, FrameBuffer, Head, Message, encode, is_display
from toolhub_sandbox.inside.processes import Capture, kill_tree
from toolhub_sandbox.inside.worker import MAX_DISPLAYS, Worker

# Seconds after an interrupt: code that cleans up needs a moment, and `os.system` swallows the first interrupt. After
# the second one the worker is replaced.
_SECOND_INTERRUPT_S, _GRACE_S = 0.5, 1.0
# A worker exits milliseconds after its connection ends; later on a busy machine.
_EXIT_CHECKS = 50
_MAX_ANSWER = MAX_DISPLAYS + (1 << 20)
# An idle worker takes code at once. One whose connection code has taken over may not.
_TAKE_S = 5.0

Answer = Callable[[Head, list[bytes]], None]


@dataclass(eq=False)
class CodeRun:
    """One piece of code, waiting or running."""

    id: int
    code: bytes
    timeout: float
    deadline: float = 0.0
    interrupts: int = 0
    timed_out: bool = False
    cancelled: bool = False


@dataclass(eq=False)
class WorkerManager:
    """Runs code in a worker process. It calls `watch` for descriptors to read and `answer` with results.

    become_worker: runs in the forked worker before it serves.
    """

    output_bytes: int
    answer: Answer
    watch: Callable[[int, Callable[[], object]], None]
    unwatch: Callable[[int], None]
    become_worker: Callable[[], None]
    abort: Callable[[str], None]
    end_orphans: Callable[[], None]
    queue: deque[CodeRun] = field(default_factory=deque)
    running: CodeRun | None = None
    number: int = 0
    pid: int = 0
    _unreported_loss: bool = False
    """State was lost while no caller waited for an answer; the next answer says so."""
    _channel: socket.socket | None = None
    _buffer: FrameBuffer = field(default_factory=lambda: FrameBuffer(_MAX_ANSWER))
    _streams: tuple[Capture, Capture] | None = None

    # --- requests ---------------------------------------------------------------------------------------------------

    def submit(self, run: CodeRun) -> None:
        self.queue.append(run)
        self._start_next()

    def cancel(self, run_id: int) -> None:
        """End a piece of code that waits or runs. It gets an answer nevertheless."""
        if self.running is not None and self.running.id == run_id:
            self.running.cancelled = True
            self._interrupt(self.running)
            return
        for run in [run for run in self.queue if run.id == run_id]:
            self.queue.remove(run)
            self.answer({"id": run.id, "error": ["Interrupted", "cancelled before it ran", ""], "number": 0}, [])

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running code."""
        if self.running is not None:
            _signal_group(self.pid, signal.SIGINT)

    # --- the worker -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        streams = Capture(self.output_bytes), Capture(self.output_bytes)
        try:
            pid = os.fork()
        except OSError:
            for stream in streams:
                stream.close_writer()
                stream.close()
            raise
        if pid == 0:
            _run_worker(theirs, streams, self.become_worker)
        theirs.close()
        for stream in streams:
            stream.close_writer()
            self.watch(stream.reader, lambda stream=stream: self._on_output(stream))  # type: ignore[misc]
        ours.setblocking(False)
        self.watch(ours.fileno(), self._on_answer)
        self.pid, self._channel, self._streams = pid, ours, streams
        self._buffer = FrameBuffer(_MAX_ANSWER)

    def _restart(self) -> bool:
        """Replace a worker that was lost. If no process can be started, answer all waiting code with that."""
        try:
            try:
                self.start()
            except OSError:
                self.end_orphans()  # processes that the last worker left behind use up the limit
                self.start()
        except OSError as exc:
            why = f"No Python process could be started: {exc.strerror}; the sandbox is at its limit."
            while self.queue:
                run = self.queue.popleft()
                self.answer({"id": run.id, "error": ["WorkerDied", why, ""], "state": "lost", "number": 0}, [])
            return False
        return True

    def on_exit(self, pid: int, status: int) -> None:
        """The agent reaped a process."""
        if pid == self.pid and self._channel is not None:
            self._lost(_describe_exit(os.waitstatus_to_exitcode(status)))

    def _on_output(self, stream: Capture) -> None:
        if not stream.read():
            self.unwatch(stream.reader)  # the code closed it

    def _start_next(self) -> None:
        if self.running is not None or not self.queue:
            return
        if self._channel is None and not self._restart():
            return
        assert self._channel is not None
        run = self.running = self.queue.popleft()
        self.number += 1
        run.deadline = time.monotonic() + run.timeout
        self._channel.settimeout(_TAKE_S)
        try:
            self._channel.sendall(encode({"number": self.number}, run.code))
        except OSError:
            self._lost(_wait_for_exit(self.pid))
            return
        self._channel.setblocking(False)

    def _on_answer(self) -> None:
        assert self._channel is not None
        try:
            data = self._channel.recv(RECEIVE_BYTES)
            answers = [_validated(*message) for message in self._buffer.feed(data)]
        except BlockingIOError:
            return
        except (OSError, BadFrame):
            data, answers = b"", []
        if not data:
            self._lost(_wait_for_exit(self.pid))
        elif answers and self.running is not None:
            head, displays = answers[0]
            self._finish(head | {"state": "kept"}, displays)

    def _lost(self, why: str) -> None:
        """The worker is dead or unusable: end it with all that it started, and answer the running code."""
        assert self._channel is not None and self._streams is not None
        pid, self.pid = self.pid, 0
        if not kill_tree(pid):
            self.abort("processes were started faster than they could be ended")
        self.unwatch(self._channel.fileno())
        self._channel.close()
        self._channel = None
        self._unreported_loss = self.running is None or self.running.cancelled
        if self.running is not None:
            run = self.running
            error = ["WorkerDied", why, ""]
            if run.timed_out:
                error = ["ExecutionTimeout", "", ""]
            elif run.cancelled:
                error = ["Interrupted", "cancelled", ""]
            self._finish({"error": error, "state": "lost"}, [])
        for stream in self._streams:
            self.unwatch(stream.reader)
            stream.close()
        self._streams = None
        self._start_next()

    def _finish(self, head: Head, displays: list[bytes]) -> None:
        assert self.running is not None and self._streams is not None
        run, self.running = self.running, None
        texts, dropped = [], 0
        for stream in self._streams:
            stream.drain()
            text, lost = stream.take()
            texts.append(text)
            dropped += lost
        is_usable = head["state"] == "kept"
        if self._unreported_loss and not run.cancelled:
            head["state"], self._unreported_loss = "lost", False
        head |= {"id": run.id, "number": self.number, "dropped": dropped, "timed_out": run.timed_out}
        self.answer(head, [*texts, *displays])
        if is_usable:
            self._start_next()

    # --- time -------------------------------------------------------------------------------------------------------

    @property
    def next_deadline(self) -> float | None:
        return self.running.deadline if self.running is not None else None

    def on_time(self, now: float) -> None:
        """Interrupt code that ran too long. Replace the worker if that does not help."""
        run = self.running
        if run is None or now < run.deadline:
            return
        if run.interrupts < 2:
            run.timed_out = run.timed_out or not run.cancelled
            self._interrupt(run)
        else:
            self._lost("The code did not end when it was interrupted.")

    def _interrupt(self, run: CodeRun) -> None:
        run.interrupts += 1
        pause = _SECOND_INTERRUPT_S if run.interrupts == 1 else _GRACE_S - _SECOND_INTERRUPT_S
        run.deadline = time.monotonic() + pause
        _signal_group(self.pid, signal.SIGINT)


def _run_worker(channel: socket.socket, streams: tuple[Capture, Capture], become_worker: Callable[[], None]) -> None:
    """The forked child: never returns."""
    try:
        os.setsid()
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)  # so that all processes it starts stay below it
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(streams[0].writer, 1)
        os.dup2(streams[1].writer, 2)
        kept = os.dup(channel.fileno())
        os.closerange(3, kept)
        os.closerange(kept + 1, 1 << 20)
        channel.detach()
        sys.stdin = open(0, closefd=False)
        sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
        sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
        become_worker()
        Worker(socket.socket(fileno=kept)).serve()
    finally:
        os._exit(70)  # EX_SOFTWARE


def _validated(head: Head, parts: list[bytes]) -> Message:
    """Return the known fields of a worker's answer. Raises BadFrame: the model's code could have sent it."""
    error, shape = head.get("error"), head.get("displays")
    if error is not None and not (isinstance(error, list) and [type(text) for text in error] == [str] * 3):
        raise BadFrame("its error is not a name, a value and a traceback")
    if not isinstance(shape, list) or not all(map(is_display, shape)):
        raise BadFrame("its displays have the wrong form")
    if sum(len(kinds) for _, kinds in shape) != len(parts):
        raise BadFrame("its displays do not match their data")
    return {"error": error, "displays": shape}, parts


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _wait_for_exit(pid: int) -> str:
    """Describe how the worker ended. It is about to exit, or it closed its descriptors and goes on running."""
    for _ in range(_EXIT_CHECKS):
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            break
        if done:
            return _describe_exit(os.waitstatus_to_exitcode(status))
        time.sleep(0.001)
    return "The Python process closed its connection; its state is lost."


def _describe_exit(code: int) -> str:
    if code == -signal.SIGKILL:
        return "The Python process was killed (SIGKILL); its state is lost."
    if code < 0:
        return f"The Python process died of {signal.Signals(-code).name}; its state is lost."
    return f"The Python process exited with status {code}; its state is lost."
