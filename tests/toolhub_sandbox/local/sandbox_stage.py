"""The stage of these tests: settings, patience, tasks that can be watched, and a backend that is all in memory."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections import Counter
from contextlib import AbstractContextManager

import anyio
import psutil
from toolhub_sandbox import Isolation, SandboxUnavailable

from toolhub.config import SandboxSettings

# Sandboxes answer within milliseconds; on a machine under load, within seconds.
PATIENCE_S = 60.0
# The interpreter of the system, which any user can reach.
SYSTEM_PYTHON = "/usr/bin/python3"


def is_system_python_new_enough() -> bool:
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    return os.path.exists(SYSTEM_PYTHON) and subprocess.run([SYSTEM_PYTHON, "-c", check]).returncode == 0


def patience() -> AbstractContextManager[anyio.CancelScope]:
    return anyio.fail_after(PATIENCE_S)


def settings(**keys) -> SandboxSettings:
    """Settings whose profiles keep no sandboxes ready, unless they say so."""
    return SandboxSettings.model_validate({"profiles": PROFILES | keys.pop("profiles", {})} | keys)


PROFILES = {
    "bare": {"pool": 0},
    "data": {"preload": ["numpy", "pandas", "matplotlib.pyplot"], "pool": 0},
    "small": {"output_bytes": 100, "file_bytes": 1000, "pool": 0},
    "hasty": {"exec_timeout_s": 0.3, "command_timeout_s": 0.3, "pool": 0},
    "cramped": {"home_bytes": 1 << 20, "pool": 0},
}


class MemorySandbox:
    """A sandbox that only lives and dies."""

    def __init__(self, number, profile):
        self.id = f"m{number}"
        self.profile = profile
        self.is_alive = True
        self.kills = 0

    async def kill(self):
        self.kills += 1
        await anyio.lowlevel.checkpoint()
        self.is_alive = False


class MemoryBackend:
    """Makes them while `gate` is set. `fails`: what the next ones raise."""

    def __init__(self):
        self.gate = anyio.Event()
        self.gate.set()
        self.made = []
        self.being_made = self.most_at_once = 0
        self.fails = None
        self.attempts = 0
        self.memory_bytes = 0
        self.isolation = Isolation("memory", "none", "none")
        self._numbers = itertools.count(1)

    async def create(self, name, profile):
        self.attempts += 1
        self.being_made += 1
        self.most_at_once = max(self.most_at_once, self.being_made)
        try:
            await self.gate.wait()
        finally:
            self.being_made -= 1
        if self.fails is not None:
            raise self.fails
        self.made.append(MemorySandbox(next(self._numbers), name))
        return self.made[-1]

    @property
    def alive(self):
        return [sandbox for sandbox in self.made if sandbox.is_alive]


UNAVAILABLE = SandboxUnavailable("no room at the inn")


def descriptors() -> Counter[str]:
    """What this process has open, counted by kind: event loops replace their own now and then."""
    found = Counter[str]()
    for number in os.listdir("/proc/self/fd"):
        try:
            found[os.readlink(f"/proc/self/fd/{number}").partition(":[")[0]] += 1
        except FileNotFoundError:
            pass  # the one that listed them
    return found


def processes() -> set[int]:
    """Everything alive below this process."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE:
                found.add(child.pid)
        except psutil.NoSuchProcess:
            pass
    return found
