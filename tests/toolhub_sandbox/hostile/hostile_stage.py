"""The stage of these tests: small sandboxes, a neighbour that must not notice anything, and what the hub may cost."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from real_processes import Process, below
from toolhub_sandbox import OwnerSandboxes, Sandbox, Sandboxes

from toolhub.config import SandboxSettings

MIB = 1 << 20
# Everything here takes a second or two; more while the machine does something else.
PATIENCE_S = 40.0
# What one execution may cost the hub, however much the code writes.
HUB_BYTES = 20 * MIB
SMALL = {
    "pool": 0,
    "memory_bytes": 100 * MIB,
    "processes": 30,
    "home_bytes": 30 * MIB,
    "tmp_bytes": 20 * MIB,
    "output_bytes": 64 << 10,
    "file_bytes": 8 * MIB,
    "exec_timeout_s": 20,
    "command_timeout_s": 20,
}
# What code can try inside: `attempt(f, ...)` and `call(number, ...)` give the result, or the name of the errno.
TRIES = """
import ctypes, errno, os, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)

def attempt(function, *args, **keys):
    try:
        return function(*args, **keys)
    except OSError as exc:
        return errno.errorcode.get(exc.errno, str(exc))

def call(number, *args):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    return errno.errorcode[ctypes.get_errno()] if result == -1 else result

def channel():
    "The socket to the agent."
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            return socket.socket(fileno=os.dup(fd))
        except OSError:
            pass
"""


def patience() -> AbstractContextManager[anyio.CancelScope]:
    return anyio.fail_after(PATIENCE_S)


def settings(**keys: Any) -> SandboxSettings:
    """Settings whose profile `bare` is small; `keys` of it may be given as `bare={...}`."""
    bare = SMALL | keys.pop("bare", {})
    return SandboxSettings.model_validate({"profiles": {"bare": bare} | keys.pop("profiles", {})} | keys)


async def value(sandbox: Sandbox, code: str) -> Any:
    """Run code and return the value of its last expression."""
    done = await sandbox.exec_code(code)
    assert done.error is None, done
    return ast.literal_eval(done.result or "None")


async def tried(sandbox: Sandbox, code: str) -> Any:
    """As `value`, with what is in TRIES."""
    return await value(sandbox, TRIES + code)


def processes() -> set[Process]:
    """Everything alive below the hub."""
    return set(below(os.getpid()))


def descriptors() -> set[str]:
    """What this process has open, but not what lists it and what event loop and threads open as they like."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(re.sub(r"\d{4,}", "N", os.readlink(f"/proc/self/fd/{number}")) + f" {number}")
        except FileNotFoundError:
            pass
    return found


class HubCost:
    """How much memory this process took at most since the beginning."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        self._before = self._read("VmRSS")

    @property
    def bytes(self) -> int:
        return self._read("VmHWM") - self._before

    def _read(self, key: str) -> int:
        status = Path("/proc/self/status").read_text()
        return int(re.search(rf"{key}:\s+(\d+) kB", status)[1]) * 1024


@contextmanager
def cheap_for_the_hub(most: int = HUB_BYTES) -> Iterator[None]:
    cost = HubCost()
    yield
    assert cost.bytes < most, f"the hub took {cost.bytes >> 20} MiB"


@dataclass(frozen=True)
class HostileStage:
    """One sandbox for the villain, `box`, beside one of somebody else."""

    sandboxes: Sandboxes
    scope: OwnerSandboxes
    box: Sandbox
    neighbour: Sandbox
    before: frozenset[Process]
    """Everything below the hub before `box` was made."""

    @property
    def limits(self) -> str:
        backend = self.sandboxes._backend
        assert backend is not None
        return backend.value.isolation.limits

    @property
    def has_cgroup(self) -> bool:
        return self.limits.startswith("cgroup")

    @property
    def its_processes(self) -> set[Process]:
        return processes() - self.before


async def assert_well(neighbour: Sandbox) -> None:
    """It still has its variable, its file and a shell."""
    with anyio.fail_after(10):
        assert await value(neighbour, "kept + 1") == 42
        done = await neighbour.run_command("cat mine.txt")
    assert (done.exit_code, done.stdout) == (0, "mine")
