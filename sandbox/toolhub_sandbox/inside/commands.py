"""Shell commands. Each runs below a shim (a small parent process), so that a timeout can end all that it started."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from toolhub_sandbox.inside import syscalls
from toolhub_sandbox.inside.frames import Head
from toolhub_sandbox.inside.processes import Capture, kill_tree, raise_oom_score

Answer = Callable[[Head, list[bytes]], None]

# Each command costs three processes. No agent is known to run more at once.
MAX_COMMANDS = 32
# Output streams that are still read because background processes write to them. The oldest are closed first.
MAX_LEFT = 256
# A killed command is gone within milliseconds; if not, it is killed again.
_KILL_S = 1.0
# Characters of a path that an error shows.
_SHOWN = 80
SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")


@dataclass(eq=False)
class Command:
    """One running command; `shim` is the process above it."""

    id: int
    shim: int
    streams: tuple[Capture, Capture]
    deadline: float
    timed_out: bool = False
    cancelled: bool = False


@dataclass(eq=False)
class CommandRunner:
    """Runs the commands of one sandbox. become_shell: runs in the forked shell before it executes bash."""

    output_bytes: int
    answer: Answer
    watch: Callable[[int, Callable[[], object]], None]
    unwatch: Callable[[int], None]
    abort: Callable[[str], None]
    become_shell: Callable[[], None]
    running: dict[int, Command] = field(default_factory=dict)
    """By the shim's pid."""
    left: list[Capture] = field(default_factory=list)
    """Output streams of ended commands that background processes still write to."""

    def start(self, command_id: int, line: bytes, timeout: float, cwd: str, env: Mapping[str, str]) -> None:
        if len(self.running) >= MAX_COMMANDS:
            self.answer({"id": command_id, "failed": f"{MAX_COMMANDS} commands are running in this sandbox"}, [])
            return
        if not os.path.isdir(cwd):
            self.answer({"id": command_id, "failed": f"cwd {cwd[:_SHOWN]!r} is not a directory in the sandbox"}, [])
            return
        streams = Capture(self.output_bytes), Capture(self.output_bytes)
        try:
            shim = os.fork()
        except OSError as exc:
            for stream in streams:
                stream.close_writer()
                stream.close()
            reason = f"no process could be started: {exc.strerror}; the sandbox is at its limit"
            self.answer({"id": command_id, "failed": reason}, [])
            return
        if shim == 0:
            _run_shim(line, streams, cwd, env, self.become_shell)
        for stream in streams:
            stream.close_writer()
            self.watch(stream.reader, lambda stream=stream: self._on_output(stream))  # type: ignore[misc]
        self.running[shim] = Command(command_id, shim, streams, time.monotonic() + timeout)

    def cancel(self, command_id: int) -> None:
        for command in list(self.running.values()):
            if command.id == command_id:
                command.cancelled = True
                self._kill(command)

    def on_exit(self, pid: int, status: int) -> None:
        """The agent reaped a process; if it was a shim, its command has ended."""
        command = self.running.pop(pid, None)
        if command is None:
            return
        texts, dropped = [], 0
        for stream in command.streams:
            stream.drain()
            text, lost = stream.take()
            texts.append(text)
            dropped += lost
            self.unwatch(stream.reader)
            self._keep_reading(stream)
        code = os.waitstatus_to_exitcode(status)
        head = {"id": command.id, "code": code if code >= 0 else 128 - code, "dropped": dropped}
        self.answer(head | {"timed_out": command.timed_out}, texts)

    @property
    def next_deadline(self) -> float | None:
        return min((command.deadline for command in self.running.values()), default=None)

    def on_time(self, now: float) -> None:
        for command in list(self.running.values()):
            if now >= command.deadline:
                command.timed_out = True
                command.deadline = now + _KILL_S
                self._kill(command)

    def _kill(self, command: Command) -> None:
        if not kill_tree(command.shim):
            self.abort("processes were started faster than they could be ended")

    def _on_output(self, stream: Capture) -> None:
        if not stream.read():
            self.unwatch(stream.reader)

    def _keep_reading(self, stream: Capture) -> None:
        """Go on reading while background processes have the stream: without a reader SIGPIPE would kill them."""
        if stream.has_ended:
            stream.close()
            return
        self.watch(stream.reader, lambda: self._drop(stream))
        self.left.append(stream)
        if len(self.left) > MAX_LEFT:
            self._close(self.left[0])

    def _drop(self, stream: Capture) -> None:
        stream.read()
        stream.take()
        if stream.has_ended:
            self._close(stream)

    def _close(self, stream: Capture) -> None:
        self.left.remove(stream)
        self.unwatch(stream.reader)
        stream.close()


def _run_shim(
    line: bytes, streams: tuple[Capture, Capture], cwd: str, env: Mapping[str, str], become_shell: Callable[[], None]
) -> None:
    """Be the forked shim: start the shell, wait for it, exit with its status. Never returns."""
    try:
        os.setsid()
        syscalls.set_name("shim")
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        shell = os.fork()
        if shell == 0:
            _exec_shell(line, streams, cwd, env, become_shell)
        os.closerange(0, 1 << 20)
        while True:
            pid, status = os.wait()
            if pid == shell:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else 128 - code)
    finally:
        os._exit(126)  # the shell's status for "found, but could not be executed"


def _exec_shell(
    line: bytes, streams: tuple[Capture, Capture], cwd: str, env: Mapping[str, str], become_shell: Callable[[], None]
) -> None:
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(streams[0].writer, 1)
        os.dup2(streams[1].writer, 2)
        os.closerange(3, 1 << 20)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
        for number in (signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(cwd)
        raise_oom_score()
        become_shell()
        shell = next(path for path in SHELLS if os.path.exists(path))
        name = "bash" if shell.endswith("bash") else "sh"
        os.execve(shell, [name, "-lc", os.fsdecode(line)], {**os.environ, **env})  # noqa: S606
    except (OSError, ValueError) as exc:  # ValueError: an environment variable with `=` or a null byte in its name
        os.write(2, f"{getattr(exc, 'strerror', None) or exc}\n".encode(errors="replace"))
    finally:
        os._exit(126)
