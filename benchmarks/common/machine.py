"""Where and when a result was measured, and whether the machine was quiet meanwhile."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import subprocess
import time
from pathlib import Path
from typing import Self

import psutil

from benchmarks.common.result import ROOT, Json
from toolhub_runtime import DISTRIBUTION

PACKAGES = (
    DISTRIBUTION, "mcp", "anyio", "uvloop", "httpx2", "uvicorn", "pydantic", "fastmcp", "ipykernel", "playwright",
    "pandas", "matplotlib",
)  # fmt: skip
# If others use more than this share of one core, the numbers are worth less.
NOISY_PERCENT = 10.0
# Long enough for shares of some percent: the kernel counts in steps of 10 ms.
LOAD_CHECK_S = 1.0


def describe() -> Json:
    """Return cores, CPU, memory, kernel, Python and package versions."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": _cpu_model(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or "unknown")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_revision() -> Json:
    """Return ``{"revision", "dirty"}``: dirty when tracked files other than results and pages differ."""
    made_here = (":!benchmarks/results", ":!benchmarks/README.md", ":!README.md")
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *made_here)
    return {"revision": _git("rev-parse", "HEAD"), "dirty": bool(changes)}


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


class NoiseWatch:
    """Measures what else ran: the machine's busy time less our own and that of the children we waited for."""

    unwaited_cpu_s = 0.0
    """CPU time of our own processes that were not waited for. The benchmark sets it before the end."""

    def __enter__(self) -> Self:
        self._load = os.getloadavg()
        self._began = time.monotonic()
        self._busy, self._ours = _busy_seconds(), _our_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        wall = time.monotonic() - self._began
        others = (_busy_seconds() - self._busy) - (_our_seconds() - self._ours) - self.unwaited_cpu_s
        percent = max(0.0, others / wall * 100)
        self.findings: Json = {
            "load_before": list(self._load),
            "load_after": list(os.getloadavg()),
            "others_cpu_percent": percent,
            "noisy": percent > NOISY_PERCENT,
            "wall_s": wall,
        }


def others_percent() -> float:
    """CPU that others use now, in percent of one core; looks for LOAD_CHECK_S."""
    with NoiseWatch() as watch:
        time.sleep(LOAD_CHECK_S)
    return float(watch.findings["others_cpu_percent"])


def _busy_seconds() -> float:
    """CPU time of all processes. Time that the host took from this virtual machine counts too."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _our_seconds() -> float:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in usage)
