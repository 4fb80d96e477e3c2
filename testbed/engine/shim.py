"""Stays above an engine and ends all of it once its owner is gone or wants it gone.

    python -I shim.py FOLDER COMMAND...     (stdin: a pipe from the owner, stdout: gets the engine's pid)

The owner ends the engine by closing the pipe; when it is killed, the kernel does. Unlike a shim of the hub's servers
this one asks first and waits for every process: an engine that is killed leaves its shared memory in /dev/shm. FOLDER
is for the engine's files and goes with it; what it says goes to stderr.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time

import psutil

# From SIGTERM until all four processes have ended by themselves: 1 s when idle.
STOP_S = 20.0
# While it starts, vLLM loses a SIGTERM now and then.
ASK_S = 2.0
_PAUSE_S = 0.02
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None)


def main(folder: str, command: list[str]) -> None:
    owner = os.pidfd_open(os.getppid())  # its end also counts where a fork of it keeps the pipe open
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        engine = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=_end_with_shim
        )
        print(engine.pid, flush=True)
        select.select([sys.stdin, owner], [], [])
        _end_everything_below()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end_with_shim() -> None:
    """Should the shim be killed, the engine's first process still ends, and with it the others."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _end_everything_below() -> None:
    """SIGTERM until it has been heard, then SIGKILL."""
    started = time.monotonic()
    asked = -1
    while _any_child_left():
        passed = time.monotonic() - started
        if passed > STOP_S:
            _signal_all(signal.SIGKILL)
        elif passed // ASK_S > asked:
            asked = int(passed // ASK_S)
            _signal_all(signal.SIGTERM)
        time.sleep(_PAUSE_S)


def _signal_all(number: signal.Signals) -> None:
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _any_child_left() -> bool:
    """Reap what has ended. What had lost its parent is a child of this process, too."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
