"""The code inside a confined process; see `process.py`.

The launcher reads the settings, forks, and waits until the process or the hub ends. The fork gives up what it does not
need, reports the result, and answers one call after the other.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from toolhub_sandbox.inside import seccomp, syscalls
from toolhub_sandbox.inside.frames import FrameBuffer, encode, receive
from toolhub_sandbox.inside.isolation import enter_new_root, map_ids

from toolhub_servers.confined import CONFINED_UID, uid_exists

LARGEST_CALL = 256 << 20
MAX_FILES = 128
_HUB = 0  # the socket to the hub, which is stdin
_IS_LINUX = sys.platform == "linux"
_MS_REMOUNT = 32
_NOTE = struct.Struct("<i")
"""How many milliseconds a call may take from now on; -1 when it has ended."""


def main() -> NoReturn:
    """Run the launcher."""
    hub = socket.socket(fileno=_HUB)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = receive(hub, FrameBuffer(LARGEST_CALL))[0]["settings"]
    isolation: list[str] = []
    alive, notes = os.pipe()
    try:
        if _unshare_pids():
            isolation.append("namespaces")
        pid = os.fork()
    except OSError as exc:
        _fail(hub, exc)
    if pid == 0:
        os.close(alive)
        try:
            _confine(settings, isolation)
        except Exception as exc:
            _fail(hub, exc)
        hub.sendall(encode({"isolation": isolation}))
        _serve(hub, notes)
    os.close(notes)
    _guard(pid, alive)


def _fail(hub: socket.socket, exc: Exception) -> NoReturn:
    hub.sendall(encode({"failed": f"{type(exc).__name__}: {exc}"}))
    os._exit(1)


def _guard(pid: int, alive: int) -> NoReturn:
    """Kill the process when the hub closes its end of the socket, or when a call takes too long.

    The hub also measures the time, but it may be too busy. RLIMIT_CPU does not work: the first process of a pid
    namespace ignores signals. When the process has ended, exit with its status as a shell does.
    """
    poll = select.poll()
    poll.register(_HUB, 0)
    poll.register(alive, select.POLLIN)
    left_ms: int | None = None
    while (ready := dict(poll.poll(left_ms))) and _HUB not in ready and (note := os.read(alive, _NOTE.size)):
        (left_ms,) = _NOTE.unpack(note)
    os.kill(pid, signal.SIGKILL)  # the child has not been waited for, so the pid is still its own
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(128 - code if code < 0 else code)


# --- giving up privileges ---------------------------------------------------------------------------------------------


def _unshare_pids() -> bool:
    """Make the next fork process 1 of a new pid namespace.

    When it ends, the kernel ends all processes in the namespace.
    """
    if not _IS_LINUX:
        return False
    try:
        if os.geteuid() == 0:
            try:
                syscalls.unshare(syscalls.CLONE_NEWPID)
                return True
            except PermissionError:
                pass  # root of a container needs a user namespace, like any user
        uid, gid = os.geteuid(), os.getegid()
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWPID)
        map_ids({uid: uid}, {gid: gid})
    except OSError:
        return False
    return True


def _confine(settings: dict[str, Any], isolation: list[str]) -> None:
    """Give up everything that the work does not need. Raises OSError if a necessary step fails."""
    sys.path[:] = settings["path"]
    sys.dont_write_bytecode = True
    if _IS_LINUX:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    if "namespaces" in isolation:
        _enter_own_tree(settings["folders"], settings["writable"])
    if os.geteuid() == 0:
        _become(*_account(settings["writable"]))
        if os.geteuid() != 0:
            isolation.append("uid")
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, MAX_FILES),
        (resource.RLIMIT_FSIZE, settings["file_bytes"]),
    ):
        _, hard = resource.getrlimit(limit)
        lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (lowered, lowered))
    if not _IS_LINUX:
        return
    syscalls.drop_capabilities()
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # the change of uid cleared it
    if seccomp.is_supported():
        syscalls.install_filter(seccomp.build(has_cgroup=False, has_own_uid=False, is_alone=True))
        isolation.append("seccomp")
    elif "namespaces" not in isolation:
        raise OSError("this machine has neither namespaces nor a known seccomp, so the network cannot be cut off")


def _enter_own_tree(folders: list[str], writable: str | None) -> None:
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS)
    enter_new_root([*folders, *([writable] if writable else [])], host_network=False)
    if writable is not None:
        # The mount is read-only. A remount sets all flags anew, here without MS_RDONLY.
        flags = syscalls.MS_BIND | _MS_REMOUNT | syscalls.MS_NOSUID | syscalls.MS_NODEV
        syscalls.mount("", writable, flags=flags)


def _account(writable: str | None) -> tuple[int, int]:
    """Return the user to become in place of root: the owner of the writable folder, or a uid that is not in use.

    A user namespace may have only root. That root has no more rights than an ordinary user.
    """
    if writable is not None:
        owner = os.stat(writable)
        return owner.st_uid, owner.st_gid
    return (CONFINED_UID, CONFINED_UID) if uid_exists(CONFINED_UID) else (0, 0)


def _become(uid: int, gid: int) -> None:
    if uid == 0:
        return
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if not os.access(importlib.__file__, os.R_OK) or not os.access(__file__, os.R_OK):
        raise PermissionError(
            f"uid {uid} cannot read {Path(__file__).parent}, and this machine does not let the hub make namespaces; "
            "install toolhub where all users can read it, run the hub as an ordinary user, or allow namespaces"
        )


# --- doing the work ---------------------------------------------------------------------------------------------------


def _serve(hub: socket.socket, notes: int) -> NoReturn:
    buffer = FrameBuffer(LARGEST_CALL)
    empty_bytes = _address_space_bytes()
    while True:
        try:
            head, parts = receive(hub, buffer)
        except (EOFError, OSError):
            os._exit(0)
        os.write(notes, _NOTE.pack(head["most_ms"]))
        answer = _answer(head, parts, empty_bytes)
        os.write(notes, _NOTE.pack(-1))
        hub.sendall(answer)


def _answer(head: dict[str, Any], parts: list[bytes], empty_bytes: int) -> bytes:
    try:
        with _limited(empty_bytes + head["memory_bytes"]):
            function = getattr(importlib.import_module(head["module"]), head["name"])
            args = [
                part if kind == "bytes" else json.loads(part) for kind, part in zip(head["kinds"], parts, strict=True)
            ]
            value = json.dumps(function(*args), default=dataclasses.asdict).encode()
    except Exception as exc:
        return encode({"raised": type(exc).__name__, "message": str(exc)[:10_000]})
    return encode({}, value)


@contextmanager
def _limited(most_bytes: int) -> Iterator[None]:
    """Bound the address space for one call. The next call comes with its own bound."""
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = most_bytes if hard == resource.RLIM_INFINITY else min(most_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def _address_space_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:  # not Linux, where this bound does not work anyway
        return 0
