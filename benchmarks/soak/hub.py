"""The hub under test: a process that can be killed and restarted at the same addresses, and its leftovers.

As a program it is `toolhub` with a wall clock that can be set: `time.time` adds the number in a file.

    python -m benchmarks.soak.hub CLOCK serve --config ...
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.common.measure import tree
from benchmarks.common.result import ROOT, Json
from benchmarks.common.subprocess_worker import WorkerFailed
from benchmarks.soak import leftovers

_TOOLS = Path(__file__).with_name("tools.py")
# Deaths are the subject here, so no server is given up: each death is followed by a start.
_RESTART = {"max_deaths": 1_000_000, "backoff_s": 0.05, "max_backoff_s": 1}
_READ_ONLY = {"policy": {"look": {"read_only": True}}}


def servers(ledger: Path, upstream_port: int) -> dict[str, Json]:
    """Servers by the names that `load` calls them by."""
    stdio = {
        "command": sys.executable,
        "args": ["-S", str(_TOOLS), str(ledger)],
        "tools": _READ_ONLY,
        "restart": _RESTART,
        "stateful": False,
        "idle_s": 60,
    }
    return {
        "exec": {**stdio, "spawn": "exec"},
        "fork": {**stdio, "spawn": "fork"},
        "shared": {**stdio, "share": "hub", "concurrency": 256},
        "builtin": {
            "builtin": "benchmarks.soak.tools:create_server",
            "options": {"ledger": str(ledger)},
            "share": "hub",
        },
        "http": {
            "transport": "http",
            "url": f"http://127.0.0.1:{upstream_port}/mcp",
            "tools": _READ_ONLY,
            "restart": _RESTART,
            "stateful": False,
        },
        "python": {"builtin": "python", "options": {"profile": "bare"}},
        **_browser(upstream_port),
    }


def _browser(upstream_port: int) -> dict[str, Json]:
    """The browser server, on a machine that can run it."""
    programs = ("chromium", "chromium-browser", "google-chrome")
    if find_spec("playwright") is None or not any(map(shutil.which, programs)):
        return {}
    return {"browser": {"builtin": "browser", "options": {"allow_private": [f"127.0.0.1:{upstream_port}"]}}}


SECTIONS: dict[str, Json] = {
    # The hub notices by the lease that a client has vanished.
    "limits": {"concurrency": 512, "task_lease_s": 120, "max_tasks": 2000},
    "sandbox": {"profiles": {"bare": {"pool": 4, "memory_bytes": 256 << 20}}},
}


_START_S, _CLOSE_S, _LOOK_S = 60.0, 60.0, 0.02
# After SIGKILL of the hub the supervisor kills what is left within a second; the machine is busy with the load.
GONE_S = 5.0
_STATE_BYTES = 32 << 20
# Many tasks begin at once, and servers that cost nothing are started: more at a time than the default of two per core.
_STARTS = 16
_CLOCK = struct.Struct("d")
_LAST_WORDS = 1000


@dataclass(frozen=True)
class Inventory:
    """What a hub holds, or leaves behind. cgroups, mounts: with those of the faults."""

    processes: int = 0
    descriptors: int = 0
    sockets: int = 0
    cgroups: int = 0
    mounts: int = 0
    temporary_files: int = 0
    state_files: int = 0

    def to_json(self) -> Json:
        return asdict(self)


class SoakHub:
    """`with SoakHub(folder, servers) as hub`: listens at a unix socket and on a TCP port."""

    def __init__(self, folder: Path, servers: Json, **sections: Json) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.temporary = folder / "tmp"
        self.socket = folder / "hub.sock"
        self.port = _free_port()
        self.has_own_disk = False
        self.has_browser = "browser" in servers
        self.orphans = 0
        """Processes of a hub that were alive `GONE_S` after it had ended."""
        self.starts = 0
        self._servers, self._sections = servers, sections
        self._process: subprocess.Popen[bytes] | None = None
        self._clock = folder / "clock"
        self._pids: set[int] = set()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def mcp_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def __enter__(self) -> Self:
        for folder in (self.state, self.temporary):
            folder.mkdir(exist_ok=True)
        for folder in (self.folder, self.temporary):
            folder.chmod(0o711)  # under root, Chromium is another user
        self.has_own_disk = _mount(self.state)
        self._clock.write_bytes(_CLOCK.pack(0.0))
        hub = {"state_dir": str(self.state), "port": self.port, "uds": str(self.socket), "max_starts": _STARTS}
        config = {"hub": hub, "servers": self._servers, **self._sections}
        (self.folder / "hub.json").write_text(json.dumps(config))
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
        leftovers.remove_mounts(os.getpid())

    def start(self) -> None:
        """Start it, and wait until it is ready. Raises WorkerFailed."""
        self.starts += 1
        arguments = ["serve", "--config", str(self.folder / "hub.json")]
        with (self.folder / "hub.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.soak.hub", str(self._clock), *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # a terminal's Ctrl-C is for the soak, which then ends it in order
            )
        self._pids.add(self.pid)
        deadline = time.monotonic() + _START_S
        while not self._is_listening():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise WorkerFailed(f"the hub did not start: {self.last_words()}")
            time.sleep(_LOOK_S)

    def _is_listening(self) -> bool:
        with socket.socket(socket.AF_UNIX) as unix, socket.socket() as tcp, suppress(OSError):
            unix.connect(str(self.socket))
            tcp.connect(("127.0.0.1", self.port))
            return True
        return False

    def last_words(self) -> str:
        return (self.folder / "hub.log").read_text(errors="replace")[-_LAST_WORDS:]

    def set_clock(self, seconds: float) -> None:
        """Set the hub's wall clock to the machine's plus `seconds`."""
        with self._clock.open("r+b") as file:
            file.write(_CLOCK.pack(seconds))

    def end(self, number: signal.Signals) -> None:
        """Send it a signal, wait for its end, and count the processes that outlive it."""
        assert self._process is not None
        below = tree(self.pid)[1:]
        self._process.send_signal(number)
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self.orphans += 1  # it had to be killed
        self.orphans += _outliving(below)

    def continue_stopped(self) -> None:
        """Send SIGCONT to all its processes: a fault that was cut short may have left one stopped."""
        for process in tree(self.pid):
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def close(self) -> None:
        """End it in order, and remove the faults' cgroups. Harmless when repeated."""
        if self.is_up:
            self.continue_stopped()
            self.end(signal.SIGTERM)
        leftovers.remove_cgroups(os.getpid())

    def inventory(self) -> Inventory:
        """Return what the hub holds now; after its end, what is left."""
        names = _descriptors(self.pid) if self.is_up else []
        left = leftovers.find(os.getpid())
        return Inventory(
            processes=len(tree(self.pid)) if self.is_up else 0,
            descriptors=len(names),
            sockets=sum(name.startswith("socket:") for name in names),
            cgroups=sum(1 for _ in self._cgroups()) + len(left.cgroups),
            mounts=len(left.mounts) - self.has_own_disk,
            temporary_files=sum(len(files) for _, _, files in os.walk(self.temporary)),
            state_files=sum(len(files) for _, _, files in os.walk(self.state)),
        )

    def _cgroups(self) -> Iterable[Path]:
        """Groups that a hub of this soak made, for itself or for its sandboxes."""
        for path in leftovers.CGROUPS.glob("**/toolhub-*"):
            parts = path.name.split("-")
            if any(part.isdecimal() and int(part) in self._pids for part in parts[1:3]):
                yield path


def _outliving(processes: list[psutil.Process]) -> int:
    """How many are alive after GONE_S; they are killed."""
    _, alive = psutil.wait_procs(processes, timeout=GONE_S)
    count = 0
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                count += 1
                process.kill()
    return count


def _descriptors(pid: int) -> list[str]:
    names = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            names.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return names


def _mount(folder: Path) -> bool:
    """Give the folder a small disk of its own, which a fault can fill; False where that is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={_STATE_BYTES},mode=0700", leftovers.name(os.getpid()), str(folder)]
    return sys.platform == "linux" and subprocess.run(command, check=False, capture_output=True).returncode == 0


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def main() -> None:
    """`toolhub`, with a settable clock, that ends with its parent."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    with open(sys.argv.pop(1), "r+b") as file:
        clock = mmap.mmap(file.fileno(), _CLOCK.size)
    real = time.time
    time.time = lambda: real() + _CLOCK.unpack_from(clock)[0]
    from toolhub.cli import main as toolhub_main

    toolhub_main()


if __name__ == "__main__":
    main()
