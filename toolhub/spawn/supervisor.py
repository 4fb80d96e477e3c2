"""The supervisor: a small process between the hub and its servers that outlives neither.

    hub ── request socket ──> supervisor ── fork ──> shim ── fork + exec ──> server ──> its children
     └───────────── control socket, one per server ────┘

The hub asks the supervisor for a child; the supervisor forks a *shim*, which starts the server and stays its parent.
A shim is a child subreaper: whatever the server forks, daemonises or double-forks ends up below it, so it can end
*all* of it. It does so when the server exits, when the hub says so, and when the hub dies (its control socket reads
EOF, its pidfd becomes readable). If a shim itself is killed, its orphans fall to the supervisor, which kills them.

This file is run as a script with nothing but the standard library (`python -I -S supervisor.py`), single-threaded so
that forking is safe; shims share its memory. On systems without subreapers (macOS) a shim ends the server's process
group and the descendants that `ps` still shows.
"""

from __future__ import annotations

import array
import ctypes
import errno
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

HEADER = struct.Struct("!I")
MOST_FDS = 5  # stdin, stdout, stderr, control; a zygote may be given one more
_PR_SET_CHILD_SUBREAPER = 36
# A killed process disappears within a scheduler tick; a second bounds the wait for one stuck in the kernel.
_KILL_ROUNDS, _KILL_PAUSE_S = 200, 0.005


# --- reading the process table (also used by the hub) ---------------------------------------------------------------


def start_time(pid: int) -> str | None:
    """Return a token that tells this process from a later one with the same pid; None if it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None if os.path.isdir("/proc/self") else _ps_start_time(pid)
    return None if fields[0] == b"Z" else fields[19].decode()


def _ps_start_time(pid: int) -> str | None:
    listing = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return listing.stdout.strip() or None


def children(pid: int) -> list[int]:
    """Return the direct children of `pid`, with zombies."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as listing:
                found += map(int, listing.read().split())
    except FileNotFoundError:
        if os.path.isdir(f"/proc/{pid}"):  # a kernel without CONFIG_PROC_CHILDREN
            return [child for child, parent in _parents_from_proc() if parent == pid]
        if not os.path.isdir("/proc/self"):
            return [child for child, parent in _parents_from_ps() if parent == pid]
    except (OSError, ValueError):
        pass
    return found


def _parents_from_proc() -> list[tuple[int, int]]:
    pairs = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                pairs.append((int(name), int(stat.read().rpartition(b")")[2].split()[1])))
        except OSError:
            continue
    return pairs


def _parents_from_ps() -> list[tuple[int, int]]:
    listing = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True)
    return [(int(pid), int(parent)) for pid, parent in map(str.split, listing.stdout.splitlines())]


def descendants(pid: int) -> list[int]:
    """Return every process below `pid`, parents before children."""
    found, frontier = [], [pid]
    while frontier:
        for child in children(frontier.pop()):
            found.append(child)
            frontier.append(child)
    return found


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # it is gone, or it is a setuid child that we may not kill


def _signal_group(pgid: int, number: int) -> None:
    try:
        os.killpg(pgid, number)
    except (ProcessLookupError, PermissionError):
        pass


# --- shim -----------------------------------------------------------------------------------------------------------


def _reap() -> list[tuple[int, int]]:
    """Collect every exited child as (pid, wait status)."""
    collected: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return collected
        if pid == 0:
            return collected
        collected.append((pid, status))


def _kill_everything_below(pid: int) -> None:
    for _ in range(_KILL_ROUNDS):
        _reap()
        alive = descendants(pid)
        if not alive:
            return
        for victim in alive:
            _signal(victim, signal.SIGKILL)
        time.sleep(_KILL_PAUSE_S)


def _become_subreaper() -> None:
    try:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (OSError, AttributeError):
        pass  # not Linux: the process group and `ps` are used instead


def wait_readable(descriptors: list[int], timeout: float | None = None) -> list[int]:
    """Wait at most `timeout` seconds and return the descriptors that can be read.

    select() would refuse descriptors above 1023, which a hub with many connections passes on.
    """
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poller.poll(None if timeout is None else timeout * 1000)]


def _sigchld_pipe() -> int:
    """Return a descriptor that becomes readable when a child exits."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def _exec(request: dict[str, Any], stdio: list[int], errors: int) -> NoReturn:
    """In the forked child: become the server. Never returns."""
    try:
        os.setsid()
        for target, source in enumerate(stdio):
            os.dup2(source, target)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)  # an ignored signal would stay ignored across exec
        if request["cwd"]:
            os.chdir(request["cwd"])
        argv: list[str] = request["argv"]
        os.execvpe(argv[0], argv, request["env"])  # noqa: S606
    except OSError as exc:
        filename = os.fsdecode(exc.filename) if exc.filename else None
        os.write(errors, json.dumps([exc.errno, exc.strerror, filename]).encode())
    except ValueError as exc:  # a null byte: no program can be given one
        os.write(errors, json.dumps([errno.EINVAL, str(exc), None]).encode())
    finally:
        os._exit(127)  # always: the shim's code must not run on in a second process


def _start_server(request: dict[str, Any], stdio: list[int]) -> tuple[int, str]:
    """Fork and exec; return the pid and "" or the reason it could not be executed."""
    errors_out, errors_in = os.pipe()  # close-on-exec: EOF means the exec worked
    pid = os.fork()
    if pid == 0:
        _exec(request, stdio, errors_in)
    os.close(errors_in)
    with os.fdopen(errors_out, "rb") as pipe:
        reason = pipe.read().decode()
    return pid, reason


def _report(control: socket.socket, **message: Any) -> None:
    try:
        control.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        pass  # the hub is gone; the caller notices that next


def _run_shim(
    request: dict[str, Any],
    stdio: list[int],
    control: socket.socket,
    hub: int | None,
    start: Callable[[dict[str, Any], list[int]], tuple[int, str]] = _start_server,
) -> None:
    """Run a shim: start the server, carry out the hub's commands, end everything below when either has ended."""
    _become_subreaper()
    child_exited = _sigchld_pipe()
    pid, failed = start(request, stdio)
    for fd in stdio:
        os.close(fd)  # the server's ends: keeping one open would hide its EOF from the hub
    if failed:
        _report(control, failed=json.loads(failed))
        return
    _report(control, pid=pid, start_time=start_time(pid))
    watched = [control.fileno(), child_exited] + ([hub] if hub is not None else [])
    while True:
        ready = wait_readable(watched)
        if child_exited in ready:
            os.read(child_exited, 4096)
            status = dict(_reap()).get(pid)
            if status is not None:
                _report(control, exit=os.waitstatus_to_exitcode(status))
                break
        if hub in ready or control.fileno() in ready and not _handle_commands(control, pid):
            break
    _signal_group(pid, signal.SIGKILL)
    _kill_everything_below(os.getpid())
    _report(control, gone=True)


def _handle_commands(control: socket.socket, pid: int) -> bool:
    """Carry out the hub's one-letter commands; return False when the server must be killed."""
    try:
        commands = control.recv(64)
    except OSError:
        return False
    if not commands or b"K" in commands:
        return False
    _signal_group(pid, signal.SIGTERM)
    return True


# --- supervisor -------------------------------------------------------------------------------------------------------


def _receive_exactly(requests: socket.socket, size: int) -> bytes:
    body = b""
    while len(body) < size:
        chunk = requests.recv(size - len(body))
        if not chunk:
            raise EOFError
        body += chunk
    return body


def _receive_request(requests: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Read one request and the descriptors that came with it. Raises EOFError when the hub is gone."""
    fds = array.array("i")
    header, ancillary, _, _ = requests.recvmsg(HEADER.size, socket.CMSG_LEN(MOST_FDS * fds.itemsize))
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if not header:
        raise EOFError
    header += _receive_exactly(requests, HEADER.size - len(header))
    return json.loads(_receive_exactly(requests, HEADER.unpack(header)[0])), list(fds)


def _fork_shim(requests: socket.socket, hub: int | None, cgroup: str) -> int:
    request, fds = _receive_request(requests)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            requests.close()
            for fd in fds:
                os.set_inheritable(fd, False)
            _run_shim(request, fds[:3], socket.socket(fileno=fds[3]), hub)
            code = 0
            if hub is not None and wait_readable([hub], 0):
                _remove_cgroup(cgroup)  # the supervisor may be gone as well; only the last shim succeeds
        finally:
            os._exit(code)
    for fd in fds:
        os.close(fd)
    return pid


def _kill_orphans(shims: set[int]) -> None:
    """Kill what a killed shim left behind: every child of this process that is not a shim, with all below it."""
    for _ in range(_KILL_ROUNDS):
        shims.difference_update(pid for pid, _ in _reap())
        orphans = [pid for pid in children(os.getpid()) if pid not in shims]
        if not orphans:
            return
        for orphan in orphans:
            for victim in [orphan, *descendants(orphan)]:
                _signal(victim, signal.SIGKILL)
        time.sleep(_KILL_PAUSE_S)


def _pidfd_of_hub(hub_pid: int) -> int | None:
    """Return a descriptor that becomes readable when the hub dies, even if a fork of it keeps its sockets open."""
    try:
        return os.pidfd_open(hub_pid) if os.getppid() == hub_pid else None
    except (OSError, AttributeError):
        return None


def _supervise(requests: socket.socket, hub_pid: int, cgroup: str) -> None:
    _become_subreaper()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the hub handles a terminal's Ctrl-C, and then closes the socket
    hub = _pidfd_of_hub(hub_pid)
    shims: set[int] = set()
    child_exited = _sigchld_pipe()
    gc.freeze()
    watched = [requests.fileno(), child_exited] + ([hub] if hub is not None else [])
    while True:
        ready = wait_readable(watched)
        if hub in ready:
            break
        if child_exited in ready:
            os.read(child_exited, 4096)
            exited = _reap()
            shims.difference_update(pid for pid, _ in exited)
            if any(status != 0 for _, status in exited):
                _kill_orphans(shims)
        if requests.fileno() in ready:
            try:
                shims.add(_fork_shim(requests, hub, cgroup))
            except EOFError:
                break
    # Shims notice the hub's end themselves. What they have not ended in this time is killed here.
    deadline = time.monotonic() + 0.5
    while shims and time.monotonic() < deadline:
        shims.difference_update(pid for pid, _ in _reap())
        time.sleep(_KILL_PAUSE_S)
    _kill_everything_below(os.getpid())
    _remove_cgroup(cgroup)


def _remove_cgroup(path: str) -> None:
    """Leave the hub's cgroup and remove it, so that a killed hub leaves no empty cgroup. path: "" means no cgroup."""
    if not path:
        return
    try:
        with open(os.path.join(os.path.dirname(path), "cgroup.procs"), "w") as parent:
            parent.write(str(os.getpid()))
        os.rmdir(path)
    except OSError:
        pass  # it is removed already, or a member still runs: the next hub's sweep removes it


if __name__ == "__main__":
    _supervise(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3])
