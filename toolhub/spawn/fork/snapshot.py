"""Make a forked interpreter look, from inside, like one that was just started.

`zygote.py` loads this module with the standard library of any Python 3.9+. `take()` is called before anything is
loaded. It records the state of a fresh interpreter. `restore()` restores that state in the forked process and sets the
command line, environment and working directory of the server. `run()` runs the program as the interpreter itself does.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.machinery
import io
import os
import runpy
import signal
import sys
import time
import types
from collections.abc import Sequence
from typing import Any, NamedTuple

_MAIN_NAMES = (
    *("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__annotations__", "__builtins__"),
    *("__file__", "__cached__"),
)
_PR_SET_NAME = 15
# Longer than any start takes. After that the recorder of imports stops.
_RECORD_S, _RECORD_NAMES = 30.0, 5000


class InterpreterSnapshot(NamedTuple):
    """The state of a fresh interpreter."""

    main: dict[str, Any]
    """The namespace of `__main__` when a script starts."""
    added: dict[str, str]
    """Environment variables that the interpreter set itself (LC_CTYPE, if there is no locale)."""
    path: list[str]
    """`sys.path` without the program's own entry."""
    stdio: list[tuple[str, str]]
    """Encoding and error handler of stdin, stdout and stderr."""
    is_buffered: bool
    """False with -u."""
    signals: dict[int, Any]


def take(main: types.ModuleType, env: dict[str, str]) -> InterpreterSnapshot:
    """Record the state to restore. env: the environment that the interpreter was started with."""
    if not _is_path_safe():
        del sys.path[0]  # the zygote's own folder
    sys.argv = [""]
    return InterpreterSnapshot(
        {name: vars(main)[name] for name in _MAIN_NAMES if name in vars(main)},
        {name: value for name, value in os.environ.items() if name not in env},
        list(sys.path),
        [(stream.encoding, stream.errors or "strict") for stream in (sys.stdin, sys.stdout, sys.stderr)],
        not getattr(sys.stdout, "write_through", False),
        handlers(),
    )


def handlers() -> dict[int, Any]:
    """Return the handler of each signal."""
    return {int(number): signal.getsignal(number) for number in signal.valid_signals()}


def _is_path_safe() -> bool:
    return bool(sys.flags.isolated or getattr(sys.flags, "safe_path", False))


# --- in the forked process ------------------------------------------------------------------------------------------


def restore(fresh: InterpreterSnapshot, request: dict[str, Any], recorder: int | None) -> None:
    """Make this process look as if it had just been started for `request`.

    recorder: a descriptor. The names of the modules that the process imports are written to it.
    """
    _close_descriptors(keep={0, 1, 2, recorder})
    signal.set_wakeup_fd(-1)
    for number, handler in handlers().items():
        if handler is not fresh.signals[number]:
            signal.signal(number, fresh.signals[number])
    _set_environment({**request["env"], **{k: v for k, v in fresh.added.items() if k not in request["env"]}})
    _set_command_line(fresh, request)
    for fd, (encoding, errors) in enumerate(fresh.stdio):
        _open_stdio(fd, encoding, errors, is_buffered=fresh.is_buffered)
    _make_main(fresh, request)
    _reseed()
    if (processes := sys.modules.get("multiprocessing.process")) is not None:
        processes.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]  # it is the zygote's so far
    for entry in [entry for entry, finder in sys.path_importer_cache.items() if finder is None]:
        del sys.path_importer_cache[entry]  # it may exist by now
    if recorder is not None:
        sys.meta_path.insert(0, Recorder(recorder))
    gc.enable()


def _close_descriptors(keep: set[int | None]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                pass  # the descriptor of the listing itself


def _set_environment(env: dict[str, str]) -> None:
    wanted = {_bytes(name): _bytes(value) for name, value in env.items()}
    if dict(os.environb) != wanted or list(os.environb) != list(wanted):
        os.environb.clear()
        os.environb.update(wanted)


def _bytes(text: str) -> bytes:
    """Return the bytes that an execution would have passed. The request is UTF-8 in every locale."""
    return text.encode("utf-8", "surrogateescape")


def _set_command_line(fresh: InterpreterSnapshot, request: dict[str, Any]) -> None:
    line = [os.fsdecode(_bytes(word)) for word in request["line"]]
    args = line[len(line) - request["args"] :]
    program = os.fsdecode(_bytes(request["module"] or request["script"]))
    sys.argv = ["-m" if request["module"] else program, *args]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = line
    if not _is_path_safe():
        folder = os.getcwd() if request["module"] else os.path.dirname(os.path.realpath(program))
        sys.path.insert(0, folder)
    _set_process_title([_bytes(word) for word in request["line"]], _bytes(request["title"]))


def _set_process_title(line: Sequence[bytes], title: bytes) -> None:
    """Make `ps` and /proc show the server's command instead of the zygote's, cut to the zygote's length."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, title[:15] + b"\0", 0, 0, 0)
    try:
        with open("/proc/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
    except (OSError, IndexError, ValueError):
        return
    if 0 < start < end:
        text = (b"\0".join(line) + b"\0")[: end - start - 1]
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _open_stdio(fd: int, encoding: str, errors: str, *, is_buffered: bool) -> None:
    """Open a standard stream as `create_stdio` of CPython does."""
    name, mode = ("stdin", "stdout", "stderr")[fd], "r" if fd == 0 else "w"
    has_buffer = is_buffered or fd == 0
    buffer: Any = open(fd, f"{mode}b", -1 if has_buffer else 0, closefd=False)
    raw = buffer.raw if has_buffer else buffer
    raw.name = f"<{name}>"
    stream = io.TextIOWrapper(
        buffer,
        encoding,
        errors,
        "\n",
        line_buffering=is_buffered and (fd == 2 or raw.isatty()),
        write_through=not is_buffered,
    )
    stream.mode = mode  # type: ignore[misc]  # CPython sets it so
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _make_main(fresh: InterpreterSnapshot, request: dict[str, Any]) -> None:
    main = types.ModuleType("__main__")
    names = dict(fresh.main, __doc__=None, __spec__=None, __package__=None)
    if "__annotations__" in names:
        names["__annotations__"] = {}
    if request["module"]:
        names["__loader__"] = importlib.machinery.BuiltinImporter
        for name in ("__file__", "__cached__"):
            names.pop(name, None)
    else:
        path = os.path.join(os.getcwd(), os.fsdecode(_bytes(request["script"])))
        names["__file__"] = path
        names["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.clear()
    main.__dict__.update(names)
    sys.modules["__main__"] = main


def _reseed() -> None:
    """Reseed NumPy's global generator. `random` and OpenSSL reseed themselves after a fork."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


class Recorder:
    """An import finder that finds nothing. It writes each module's name to `fd` and removes itself after a while."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._until = time.monotonic() + _RECORD_S
        self._left = _RECORD_NAMES

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        self._left -= 1
        try:
            os.write(self._fd, name.encode() + b"\n")
        except (OSError, UnicodeError):
            self._left = 0  # the program has closed the descriptor
        if self._left <= 0 or time.monotonic() > self._until:
            self._stop()

    def _stop(self) -> None:
        try:
            sys.meta_path.remove(self)
            os.close(self._fd)
        except (ValueError, OSError):
            pass  # the program has removed or closed it already


# --- running ----------------------------------------------------------------------------------------------------------


def run(request: dict[str, Any]) -> None:
    """Run the program in `__main__`."""
    if request["module"]:
        runpy._run_module_as_main(request["module"])  # type: ignore[attr-defined]  # what `python -m` itself calls
        return
    main = vars(sys.modules["__main__"])
    path = main["__file__"]
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), main)  # noqa: S102  # it is the program


def report(error: BaseException, above: str) -> None:
    """Print an uncaught error, without the frames of `above` and of this file.

    The caller raises it again. It is not printed twice, and the interpreter ends with the exit code of such an error.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (above, __file__):
        trace = trace.tb_next
    error.__traceback__ = trace
    try:
        sys.excepthook(type(error), error, trace)
    finally:
        sys.excepthook = lambda *_: None
