"""The zygote: an interpreter that has loaded a server's libraries and forks the server's processes.

    hub ── request socket (stdin) ──> zygote ── fork ──> shim ── fork ──> server ──> its children
     └───────────── control socket, one per server ───────┘

A zygote takes the same requests as the supervisor and forks the same shim for each. So a server ends together with
everything that it started. Only the last step differs: the forked process does not execute a program. It restores the
state of a fresh interpreter (`snapshot.py`) and runs the program itself. To do so it unwinds out of the loop. The
server's code runs with one frame of this file above it, and ends as an interpreter normally ends.

The zygote is a child of the supervisor. It is single-threaded and uses only the standard library of the server's
Python (3.9+): `python <flags> zygote.py <padding>`. It ends with its hub, or after it was idle for a while. The padding
is room for the command lines of the servers.

All servers of a zygote share its hash seed. So the order of a set of strings is the same in each of them, as with
PYTHONHASHSEED set. They share nothing else that should be random.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

_MAIN = sys.modules["__main__"]
if TYPE_CHECKING:
    from toolhub.spawn import supervisor
    from toolhub.spawn.fork import preload, snapshot
else:

    def _load(path):
        """Load a module by its path from this folder, without adding it to `sys.modules`."""
        name = path.replace("../", "").replace("/", ".")
        spec = importlib.util.spec_from_file_location(f"toolhub.spawn.{name}", f"{os.path.dirname(__file__)}/{path}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    supervisor, snapshot, preload = map(_load, ("../supervisor", "snapshot", "preload"))

Request = dict[str, Any]


class _InChild(BaseException):
    """Unwinds the forked server out of the shim's loop."""


def _fork_server(request: Request, stdio: list[int]) -> tuple[int, str]:
    """Fork the server and return as `supervisor._start_server` does; in the server itself, raise _InChild."""
    errors_out, errors_in = os.pipe()
    pid = os.fork()
    if pid == 0:
        _setup_child(request, stdio, errors_in)
        os.close(errors_in)
        raise _InChild
    os.close(errors_in)
    with open(errors_out, "rb") as pipe:
        reason = pipe.read().decode()
    return pid, reason


def _setup_child(request: Request, stdio: list[int], errors: int) -> None:
    """Do the steps that can fail, and report a failure to the shim."""
    try:
        os.setsid()
        for target, source in enumerate(stdio):
            os.dup2(source, target)
        os.chdir(request["cwd"])
    except OSError as exc:
        filename = os.fsdecode(exc.filename) if exc.filename else None
        os.write(errors, json.dumps([exc.errno, exc.strerror, filename]).encode())
        os._exit(127)


def _run_shim(request: Request, fds: list[int]) -> None:
    """Run a shim. Returns only in the server's process."""
    code = 1
    control = socket.socket(fileno=fds[3])
    try:
        for fd in fds:
            os.set_inheritable(fd, False)
        supervisor._run_shim(request, fds[:3], control, None, _fork_server)
        code = 0
    except _InChild:
        control.detach()
        return
    except BaseException:  # noqa: S110  # it cannot be reported; the hub reads EOF from the control socket
        pass
    os._exit(code)


def _serve(requests: socket.socket, idle_s: float) -> tuple[Request, int | None] | None:
    """Serve requests. Returns None in the zygote at its end; in each server its request and recorder descriptor."""
    shims: set[int] = set()
    child_exited = supervisor._sigchld_pipe()
    supervisor._become_subreaper()  # for servers whose shim was killed
    gc.collect()
    gc.freeze()
    while True:
        # The idle time counts only while there are no servers.
        ready = supervisor.wait_readable([requests.fileno(), child_exited], None if shims else idle_s)
        if not ready:
            return None
        if child_exited in ready:
            os.read(child_exited, 4096)
            exited = supervisor._reap()
            shims.difference_update(pid for pid, _ in exited)
            if any(status != 0 for _, status in exited):
                supervisor._kill_orphans(shims)
        if requests.fileno() in ready:
            try:
                request, fds = supervisor._receive_request(requests)
            except EOFError:
                return None
            pid = _fork_shim(fds)
            if pid == 0:
                _run_shim(request, fds)
                return request, fds[4] if len(fds) > 4 else None
            if pid > 0:
                shims.add(pid)
            for fd in fds:
                os.close(fd)


def _fork_shim(fds: list[int]) -> int:
    """Fork. If the machine cannot fork, only this server fails, and the hub gets the reason."""
    try:
        return os.fork()
    except OSError as exc:
        with socket.socket(fileno=os.dup(fds[3])) as control:
            supervisor._report(control, failed=[exc.errno, exc.strerror, None])
        return -1


def _open_requests() -> socket.socket:
    """Move the request socket away from stdin, so that loaded modules find stdin empty."""
    requests = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    return requests


def _main() -> tuple[Request, int | None] | None:
    requests = _open_requests()
    try:
        order, _ = supervisor._receive_request(requests)
    except EOFError:
        return None
    fresh_interpreter = snapshot.take(_MAIN, order["env"])
    gc.disable()
    if not preload.preload(order, requests):
        return None
    in_child = _serve(requests, order["idle_s"])
    if in_child is not None:
        requests.detach()  # else its finalizer would close a later descriptor with the same number
        snapshot.restore(fresh_interpreter, *in_child)
    return in_child


if __name__ == "__main__":
    _in_child = _main()
    if _in_child is not None:
        try:
            snapshot.run(_in_child[0])
        except SystemExit:
            raise
        except BaseException as _error:
            snapshot.report(_error, __file__)
            raise
