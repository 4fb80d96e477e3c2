"""Load a server's libraries into a zygote, and detect imports with side effects.

All servers of the zygote share what is loaded here. Sharing is safe for code. It is unsafe when an import changes the
process or reads something from it: a thread does not exist in the forks, an open file would be shared by all of them,
and a task's variable would have the value of another task. When the zygote has detected such modules, it reports them
to the hub and ends. The hub starts another zygote that excludes them. That one may find more: modules that import an
excluded one, and changed nothing while another had loaded it before.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_STDLIB = os.path.dirname(os.__file__)
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


Unsafe = tuple[list[str], str]
"""Modules, the outermost first, whose import did something that forks must not share; and what it did."""


def preload(order: dict[str, Any], hub: socket.socket) -> bool:
    """Import the modules of `order` and report the result to the hub; return True if this process may be a zygote.

    order: `modules`: what an earlier process of the program imported. `own` packages and `excluded` modules: not
    loaded. `preload`: modules to load instead of those, wherever they lie, found from `folder`. `task_variables`: no
    module may read them, nor the working directory if `cwd_varies`.
    """

    def send(**message: Any) -> None:
        hub.sendall(json.dumps(message).encode() + b"\n")

    watch = _Watch(order)
    with watch.active():
        unsafe = list(_import_all(order, send, watch))
    send(**({"unsafe": unsafe} if unsafe else {"ready": True}))
    return not unsafe


def _import_all(order: dict[str, Any], send: Callable[..., None], watch: _Watch) -> Iterator[Unsafe]:
    """Import the modules one after the other, check the process after each, and yield those that are unsafe."""
    for name in order["preload"] or _libraries(order):
        if name in sys.modules:
            continue
        send(importing=name)
        is_configured = name in order["preload"]
        if is_configured:
            sys.path.insert(0, order["folder"])
        try:
            importlib.import_module(name)
        except BaseException as exc:
            if isinstance(exc, ImportError) and not is_configured:
                continue  # it failed in the program too
            yield [name], f"it raises {type(exc).__name__} when it is imported: {exc}"
        finally:
            if is_configured and order["folder"] in sys.path:
                sys.path.remove(order["folder"])
        yield from watch.new_changes(name)


def _libraries(order: dict[str, Any]) -> Iterator[str]:
    """Yield the observed modules that are installed libraries, without the program's own and the excluded ones."""
    not_loaded = {*order["own"], *order["excluded"]}
    is_library: dict[str, bool] = {}
    for name in order["modules"]:
        parts = name.split(".")
        if any(".".join(parts[:length]) in not_loaded for length in range(1, len(parts) + 1)):
            continue
        root = parts[0]
        if root not in is_library:
            is_library[root] = _is_library(root)
        if is_library[root]:
            yield name


def _is_library(root: str) -> bool:
    """Whether a top-level module belongs to the interpreter or is installed. A folder on PYTHONPATH does not count."""
    if root in sys.builtin_module_names or root == "__main__":
        return root != "__main__"
    try:
        spec = importlib.machinery.PathFinder.find_spec(root)
    except Exception:
        return False
    if spec is None:
        return False
    places = [*(spec.submodule_search_locations or []), *([spec.origin] if spec.has_location and spec.origin else [])]
    return bool(places) and all(
        place.startswith(_STDLIB + os.sep) or any(part in place for part in _PACKAGES) for place in places
    )


class _Watch:
    """Compares the process with its state before anything was loaded."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._reads: list[Unsafe] = []
        self._order = order
        self._output = -1
        self._before: dict[str, Any] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Watch during the block. What modules print is caught."""
        self._output = os.memfd_create("output")
        stdio = [os.dup(1), os.dup(2)]
        os.dup2(self._output, 1)
        os.dup2(self._output, 2)
        undo = self._watch_reads(frozenset(self._order["task_variables"]), self._order["cwd_varies"])
        self._before = self._state()
        try:
            yield
        finally:
            undo()
            for target, fd in enumerate(stdio, start=1):
                os.dup2(fd, target)
            for fd in (*stdio, self._output):
                os.close(fd)

    def new_changes(self, name: str) -> Iterator[Unsafe]:
        """Yield what importing the module `name` has read that differs from fork to fork, or changed in the process."""
        now = self._state()
        changes = [change for change, value in now.items() if value != self._before[change]]
        reads, self._reads, self._before = self._reads, [], now
        yield from reads
        if changes:
            yield [name], f"it {changes[0]} when it is imported"

    def _state(self) -> dict[str, Any]:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        return {
            "starts a thread": len(os.listdir("/proc/self/task")),
            "leaves a file open": sorted(os.listdir("/proc/self/fd")),
            "starts a process": _children(),
            "prints": os.fstat(self._output).st_size,
            "changes the working directory": os.stat(".")[1:3],
            "changes the environment": dict(os.environ._data),  # type: ignore[attr-defined]  # not seen by the watch
            "changes sys.path": list(sys.path),
            "sets a signal handler": [signal.getsignal(number) for number in signal.valid_signals()],
            "replaces stdio": [id(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        }

    # --- reading what differs from fork to fork -----------------------------------------------------------------------

    def _watch_reads(self, variables: frozenset[str], cwd_varies: bool) -> Callable[[], None]:
        """Record modules that read a task's variable or the working directory; return a function that ends this."""
        environ: Any = type(os.environ)
        get, iterate, getcwd = environ.__getitem__, environ.__iter__, os.getcwd

        def watched_get(self_: Any, key: Any) -> Any:
            if key in variables:
                self._record(f"it reads {key}, which differs from task to task, when it is imported")
            return get(self_, key)

        def watched_iterate(self_: Any) -> Any:
            if variables:
                self._record("it reads the whole environment, which differs from task to task, when it is imported")
            return iterate(self_)

        def watched_getcwd() -> str:
            if cwd_varies and "multiprocessing.process" not in _importing():  # each fork corrects that one
                self._record("it looks up the working directory when it is imported")
            return getcwd()

        def undo() -> None:
            environ.__getitem__, environ.__iter__, os.getcwd = get, iterate, getcwd

        environ.__getitem__, environ.__iter__, os.getcwd = watched_get, watched_iterate, watched_getcwd
        return undo

    def _record(self, reason: str) -> None:
        self._reads.append((_importing(), reason))


def _importing() -> list[str]:
    """Return the modules whose import-time code is running, outermost first."""
    found = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
            found.append(str(frame.f_globals.get("__name__")))
        frame = frame.f_back
    return found[::-1]


def _children() -> bytes:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as listing:
            return listing.read()
    except OSError:
        return b""
