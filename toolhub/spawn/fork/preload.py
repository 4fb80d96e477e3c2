"""Loading a server's libraries into a zygote, under watch.

What is loaded here is shared by every server of the zygote. That is right for code and wrong for whatever a module
does to the process, or takes from it, when it is imported: a thread would not exist in the forks, an open file would be
shared, the value of a task's variable would be somebody else's. A module that is caught at such a thing is reported to
the hub with all that were importing it, and the zygote ends; the hub starts another one that leaves these out.

A first attempt looks only at the end whether all is clean. If it is not, the next one is *careful* and looks after
every module, to find which one it is.
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


class UnsafeImport(BaseException):
    """Something that forks must not share. Not an Exception: imports that may fail shall not swallow it."""

    def __init__(self, modules: list[str], why: str) -> None:
        super().__init__(why)
        self.modules = modules
        self.why = why


def preload(order: dict[str, Any], hub: socket.socket) -> bool:
    """Import what the hub ordered and tell it how that went; True if this process may become a zygote.

    order: `modules` learned from an earlier process, `own` packages and `excluded` modules to leave alone, `opted`
    modules to load wherever they live, found from `folder`; `task_variables` that no module may look at, nor at the
    working directory if `cwd_varies`; `careful`.
    """

    def tell(**message: Any) -> None:
        hub.sendall(json.dumps(message).encode() + b"\n")

    watch = _Watch(order)
    try:
        with watch.active():
            failed = _import_all(order, tell)
            watch.check()
        if watch.reads:
            raise UnsafeImport(*watch.reads[0])
    except UnsafeImport as unsafe:
        tell(unsafe=unsafe.why, modules=unsafe.modules)
        return False
    tell(ready=True, failed=failed)
    return True


def _import_all(order: dict[str, Any], tell: Callable[..., None]) -> dict[str, str]:
    """Import one after the other; return what could not be, with the reason."""
    failed = {}
    for name in [*_libraries(order), *order["opted"]]:
        if name in sys.modules:
            continue
        tell(importing=name)
        is_opted = name in order["opted"]
        if is_opted:
            sys.path.insert(0, order["folder"])
        try:
            importlib.import_module(name)
        except ImportError as exc:
            failed[name] = str(exc)  # as in the process it was learned from, or it is no longer there
        except UnsafeImport:
            raise
        except BaseException as exc:
            raise UnsafeImport([name], f"it raises {type(exc).__name__} when it is imported: {exc}") from exc
        finally:
            if is_opted and order["folder"] in sys.path:
                sys.path.remove(order["folder"])
    return failed


def _libraries(order: dict[str, Any]) -> Iterator[str]:
    """The learned modules that are installed libraries, and neither the program itself nor excluded."""
    left_out = {*order["own"], *order["excluded"]}
    is_library: dict[str, bool] = {}
    for name in order["modules"]:
        parts = name.split(".")
        if any(".".join(parts[:length]) in left_out for length in range(1, len(parts) + 1)):
            continue
        root = parts[0]
        if root not in is_library:
            is_library[root] = _is_library(root)
        if is_library[root]:
            yield name


def _is_library(root: str) -> bool:
    """Whether a top-level module belongs to the interpreter or was installed; a folder on PYTHONPATH is neither."""
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
    """Compares the process with what it was before anything was loaded."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.reads: list[tuple[list[str], str]] = []
        self._order = order
        self._stack: list[str] = []
        self._output = -1
        self._before: dict[str, Any] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Watch during the block, with everything that is printed caught."""
        self._output = os.memfd_create("output")
        stdio = [os.dup(1), os.dup(2)]
        os.dup2(self._output, 1)
        os.dup2(self._output, 2)
        undo = self._watch_reads(frozenset(self._order["task_variables"]), self._order["cwd_varies"])
        if self._order["careful"]:
            sys.meta_path.insert(0, self)
        self._before = self._state()
        try:
            yield
        finally:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            undo()
            for target, fd in enumerate(stdio, start=1):
                os.dup2(fd, target)
            for fd in (*stdio, self._output):
                os.close(fd)

    def check(self) -> None:
        """Raise UnsafeImport if the process is not what it was; whose doing it is, is known to a careful watch."""
        now = self._state()
        for what, value in now.items():
            if value != self._before[what]:
                raise UnsafeImport(list(self._stack), f"it {what} when it is imported")

    def _state(self) -> dict[str, Any]:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        return {
            "starts a thread": len(os.listdir("/proc/self/task")),
            "leaves a file open": sorted(os.listdir("/proc/self/fd")),
            "starts a process": _children(),
            "prints": os.fstat(self._output).st_size,
            "changes the working directory": os.stat(".")[1:3],
            "changes the environment": dict(os.environ._data),  # type: ignore[attr-defined]  # past our own watch
            "changes sys.path": list(sys.path),
            "sets a signal handler": [signal.getsignal(number) for number in signal.valid_signals()],
            "replaces stdio": [id(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        }

    # --- what a module reads that differs from fork to fork -----------------------------------------------------------

    def _watch_reads(self, variables: frozenset[str], cwd_varies: bool) -> Callable[[], None]:
        """Note who reads a task's variable or the working directory; return how to end that."""
        environ: Any = type(os.environ)
        get, every, getcwd = environ.__getitem__, environ.__iter__, os.getcwd

        def watched_get(self_: Any, key: Any) -> Any:
            if key in variables:
                self._note(f"it reads {key}, which differs from task to task, when it is imported")
            return get(self_, key)

        def watched_every(self_: Any) -> Any:
            if variables:
                self._note("it reads the whole environment, which differs from task to task, when it is imported")
            return every(self_)

        def watched_getcwd() -> str:
            if cwd_varies and "multiprocessing.process" not in _importing():  # that one is put right in each fork
                self._note("it looks up the working directory when it is imported")
            return getcwd()

        def undo() -> None:
            environ.__getitem__, environ.__iter__, os.getcwd = get, every, getcwd

        environ.__getitem__, environ.__iter__, os.getcwd = watched_get, watched_every, watched_getcwd
        return undo

    def _note(self, why: str) -> None:
        self.reads.append((_importing(), why))

    # --- careful: a finder that looks round after every module --------------------------------------------------------

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        self.check()
        if name in self._order["excluded"]:
            raise UnsafeImport([*self._stack, name], "it imports a module that cannot be preloaded")
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Watched(spec.loader, self)
                return spec
        return None

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Take what happens in the block for the doing of the module `name`."""
        self._stack.append(name)
        try:
            yield
            self.check()
        finally:
            self._stack.pop()


class _Watched:
    """A module's loader, with a look round after it."""

    def __init__(self, loader: Any, watch: _Watch) -> None:
        self._loader = loader
        self._watch = watch

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        with self._watch.during(module.__name__):
            self._loader.exec_module(module)


def _importing() -> list[str]:
    """The modules whose import-time code is running, outermost first."""
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
