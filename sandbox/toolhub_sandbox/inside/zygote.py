"""The zygote: a process that has a profile's modules loaded. Each of its forks becomes a sandbox.

    python -I -c "..." LIBRARY CONTROL_FD HUB_PIDFD     (its settings are the first message)

The launcher (started by the hub) enters namespaces and forks the zygote, process 1 of its own pid namespace: when it
ends, for whatever reason, the kernel kills every sandbox below it. It ends when the hub does.
"""

from __future__ import annotations

import array
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from toolhub_sandbox.inside import display, isolation, syscalls
from toolhub_sandbox.inside.agent import SandboxOptions
from toolhub_sandbox.inside.bootstrap import detach_stdio, report_failure, run_agent, run_unisolated_agent
from toolhub_sandbox.inside.resource_watch import ResourceWatch

_MAX_REQUEST = 1 << 20
# For a zygote whose sandboxes have uids of their own: to change to such a uid, and to kill what runs as one.
_CAPABILITIES = (syscalls.CAP_SETUID, syscalls.CAP_SETGID, syscalls.CAP_KILL)


@dataclass(frozen=True, slots=True)
class ZygoteSettings:
    """What the hub decides for one zygote: the first message that it sends."""

    isolation: str
    """`namespaces`, or `none`: limits only."""
    preload: list[str]
    folders: list[str]
    """Folders of the host to show inside: those of the interpreter, and those that the profile names."""
    uid: int
    gid: int
    """For a launcher that is root: what the zygote runs as, and each sandbox without a uid of its own."""
    host_network: bool
    memory_bytes: int | None = None
    """Memory that the watch allows a sandbox; None where a cgroup limits it."""
    processes: int | None = None
    """Processes that the watch allows a sandbox; None where a cgroup or the kernel limits them."""
    cgroups: list[str] | None = None
    """Cgroup folders to remove when the hub has died."""
    own_uids: tuple[int, int] | None = None
    """First and last uid that a zygote below a root launcher may give to sandboxes, one to each."""


def main(control_fd: str, hub_fd: str) -> NoReturn:
    """Be the launcher."""
    control = socket.socket(fileno=int(control_fd))
    try:
        # Not a command-line argument: every program inside can read those.
        settings = ZygoteSettings(**json.loads(control.recv(_MAX_REQUEST)))
        if settings.isolation == "none":
            if os.geteuid() == 0:
                _set_ids(settings.uid, settings.gid)
                _check_access(settings)
            _Zygote(control, int(hub_fd), settings).serve()
        _launch(control, int(hub_fd), settings)
    except Exception as exc:
        _send(control, {"failed": f"{type(exc).__name__}: {exc}", "is_refused": isinstance(exc, OSError)})
        os._exit(1)


def _launch(control: socket.socket, hub: int, settings: ZygoteSettings) -> NoReturn:
    is_root = _unshare_as_root()
    if not is_root:
        _unshare_as_user(settings)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
            has_uids = _enter(settings, theirs if is_root and settings.own_uids is not None else None)
            theirs.close()
            _Zygote(control, hub, settings, has_uids=has_uids).serve()
        except Exception as exc:
            _send(control, {"failed": f"{type(exc).__name__}: {exc}", "is_refused": isinstance(exc, OSError)})
        finally:
            os._exit(1)
    control.close()
    theirs.close()
    os.close(hub)
    syscalls.set_name("sbx-launcher")
    with ours:
        if ours.recv(1):  # the zygote has a user namespace and waits for its uid map
            ours.send(b"y" if _map_uids(pid, settings) else b"n")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the hub decides what it means
    _, status = os.waitpid(pid, 0)
    if status == 0:  # the hub has ended; otherwise its other sandboxes still need the cgroups
        for folder in settings.cgroups or []:
            _remove_cgroups(folder)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _unshare_as_root() -> bool:
    """Enter a pid namespace as root. Returns False for other users, and for a container's root that may not."""
    if os.geteuid() != 0:
        return False
    try:
        syscalls.unshare(syscalls.CLONE_NEWPID)
    except PermissionError:
        return False
    return True


def _unshare_as_user(settings: ZygoteSettings) -> None:
    if os.geteuid() == 0:
        _set_ids(settings.uid, settings.gid)
    uid, gid = os.getuid(), os.getgid()
    try:
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWPID)
    except OSError as exc:
        raise OSError(exc.errno, f"{exc.strerror}; this machine does not allow unprivileged user namespaces") from exc
    isolation.map_ids({uid: uid}, {gid: gid})


def _enter(settings: ZygoteSettings, launcher: socket.socket | None) -> bool:
    """Move into the file tree of the sandboxes, then drop the privileges that only building it needed.

    launcher: the socket of the launcher, which maps the uids of sandboxes; None: sandboxes share a uid.
    Returns whether sandboxes can have a uid each.
    """
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS)
    socket.sethostname("sandbox")  # before the profile's modules load: some remember it
    isolation.enter_new_root(settings.folders, host_network=settings.host_network)
    has_uids = False
    if launcher is not None:
        # A user namespace of its own, so that the zygote can change to these uids and to no other, never to root.
        os.setgroups([])
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        launcher.send(b"u")
        has_uids = launcher.recv(1) == b"y"
    if launcher is not None or (os.geteuid() == 0 and settings.uid != 0):
        _set_ids(settings.uid, settings.gid)
    syscalls.drop_capabilities(keep=_CAPABILITIES if has_uids else ())
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of uid clears it
    return has_uids


def _map_uids(pid: int, settings: ZygoteSettings) -> bool:
    """Map the zygote's own uid and all of `own_uids`. Returns False if only its own uid can be mapped here."""
    assert settings.own_uids is not None
    first, last = settings.own_uids
    own = f"{first} {first} {last - first + 1}\n"
    for name, account in (("uid_map", settings.uid), ("gid_map", settings.gid)):
        try:
            _write_map(pid, name, own + ("" if first <= account <= last else f"{account} {account} 1\n"))
        except OSError:
            if name == "uid_map":
                _write_map(pid, "uid_map", f"{settings.uid} {settings.uid} 1\n")
                _write_map(pid, "gid_map", f"{settings.gid} {settings.gid} 1\n")
                return False
            raise
    return True


def _write_map(pid: int, name: str, text: str) -> None:
    with open(f"/proc/{pid}/{name}", "w") as file:
        file.write(text)


def _set_ids(uid: int, gid: int) -> None:
    if os.getgroups():
        os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # the change of uid cleared it, and /proc/self would belong to root


def _check_access(settings: ZygoteSettings) -> None:
    """Without a file tree of their own, sandboxes must reach the interpreter by its path on the host."""
    if not os.access(sys.executable, os.X_OK):
        hint = "name another interpreter in sandbox.python"
        raise PermissionError(f"uid {settings.uid} cannot run {sys.executable}; {hint}")


class _Zygote:
    """Loads the profile's modules, then forks a sandbox for each request."""

    def __init__(self, control: socket.socket, hub: int, settings: ZygoteSettings, *, has_uids: bool = False) -> None:
        self._has_uids = has_uids
        self._control = control
        self._hub = hub
        self._settings = settings
        self._spawned_receiver, self._spawned_sender = socket.socketpair(type=socket.SOCK_DGRAM)
        self._spawned_receiver.setblocking(False)
        self._watch = ResourceWatch(
            settings.memory_bytes,
            self._notify,
            processes=settings.processes,
            own_network=settings.isolation == "namespaces" and not settings.host_network,
        )
        self._agents: dict[int, str] = {}
        self._homes: set[str] = set()
        """Home folders of unisolated sandboxes, to remove if the hub was killed and cannot."""

    def serve(self) -> NoReturn:
        syscalls.set_name("sbx-zygote")
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        self._load()
        detach_stdio()
        threads = len(os.listdir("/proc/self/task"))
        self._notify({"ready": os.getpid(), "threads": threads, "has_uids": self._has_uids})
        poller = select.poll()
        for descriptor in (self._control.fileno(), self._hub, self._spawned_receiver.fileno()):
            poller.register(descriptor, select.POLLIN)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        woken, waker = os.pipe()
        for end in (woken, waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        poller.register(woken, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poller.poll(self._watch.pause_ms)}
            if self._hub in ready:
                self._end()
            if self._spawned_receiver.fileno() in ready:
                self._note_spawned()
            if woken in ready:
                os.read(woken, 4096)
                self._reap()
            if self._control.fileno() in ready:
                self._on_request()
            self._watch.check(self._agents)

    def _load(self) -> None:
        sys.path[:] = [entry for entry in sys.path if os.path.exists(entry)]
        sys.dont_write_bytecode = True
        sys.meta_path.append(display.FigureBackendFinder())
        scratch = "/tmp"  # noqa: S108 - the tree's own
        defaults = {"HOME": scratch, "MPLCONFIGDIR": scratch, "MPLBACKEND": display.MATPLOTLIB_BACKEND}
        os.environ.update(defaults | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
        for name in self._settings.preload:
            try:
                importlib.import_module(name)
            except Exception as exc:
                reason = f"module {name!r} cannot be loaded by {sys.executable}: {type(exc).__name__}: {exc}"
                self._notify({"failed": reason})
                os._exit(1)
        gc.collect()
        gc.freeze()  # otherwise a garbage collection would write to, and so copy, every shared page

    def _notify(self, head: dict[str, Any]) -> None:
        if not _send(self._control, head):
            self._end()

    def _end(self) -> NoReturn:
        """End: the hub has died, or has closed the connection."""
        if self._settings.isolation == "none":
            self._watch.kill_all(self._agents)
            for folder in self._homes:
                shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    def _note_spawned(self) -> None:
        """Read all that new sandboxes have sent."""
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._spawned_receiver, 256, len(isolation.FILE_SYSTEMS))
            except BlockingIOError:
                return
            name, _, pid = data.decode().partition(" ")
            if pid:
                self._agents[int(pid)] = name
            else:
                self._watch.file_systems[name] = descriptors

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._note_spawned()  # a sandbox that ended at once: its messages must not be read after its end
            if (name := self._agents.pop(pid, None)) is not None:
                self._watch.forget(name)
        if self._settings.isolation == "none":
            self._watch.kill_strays(self._agents)

    def _on_request(self) -> None:
        try:
            data, ancillary, _, _ = self._control.recvmsg(_MAX_REQUEST, socket.CMSG_SPACE(4))
        except OSError:
            self._end()
        if not data:
            self._end()
        descriptors = array.array("i")
        descriptors.frombytes(ancillary[0][2][:4])
        options = SandboxOptions(**json.loads(data))
        with socket.socket(fileno=descriptors[0]) as hub:
            try:
                pid = os.fork()
            except OSError as exc:  # this uid is at its limit of processes; a later fork may work
                report_failure(hub, exc)
                return
            if pid == 0:
                self._become_sandbox(hub, options)
        if self._settings.isolation == "none":
            self._agents[pid] = options.id  # at once: otherwise it would be killed as a stray
            self._homes = {home for home in self._homes if os.path.isdir(home)} | {options.home}

    def _become_sandbox(self, hub: socket.socket, options: SandboxOptions) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            spawned = self._spawned_sender.detach()
            self._control.detach()
            self._spawned_receiver.detach()
            _close_all_but(hub.fileno(), spawned)
            if self._settings.isolation == "none":
                os.close(spawned)
                run_unisolated_agent(hub, options)
            if options.uid is not None:
                _set_ids(options.uid, options.uid)
            isolation.unshare(network=self._settings.host_network)
            pid = os.fork()
            if pid == 0:
                _become_agent(hub, options, self._settings.folders, spawned)
            os.write(spawned, f"{options.id} {pid}".encode())
            os._exit(0)
        except BaseException as exc:
            report_failure(hub, exc)
        finally:
            os._exit(1)


def _become_agent(hub: socket.socket, options: SandboxOptions, folders: Sequence[str], spawned: int) -> NoReturn:
    """Process 1 of a sandbox."""
    try:
        isolation.mount_private(options, folders)
        isolation.limit_namespace()
        if options.network != "host":
            isolation.bring_up_loopback()
        if options.memory_bytes is not None:
            _show_file_systems(spawned, options.id)
            if options.network != "host":
                isolation.limit_sockets()
        os.close(spawned)
        socket.sethostname("sandbox")
        run_agent(hub, options)
    except BaseException as exc:
        report_failure(hub, exc)
    finally:
        os._exit(1)


def _show_file_systems(spawned: int, name: str) -> None:
    """Send the zygote descriptors of this sandbox's file systems: it watches how full they are, and cannot see them."""
    descriptors = [os.open(folder, os.O_PATH | os.O_DIRECTORY) for folder in isolation.FILE_SYSTEMS]
    with socket.socket(fileno=os.dup(spawned)) as zygote:
        socket.send_fds(zygote, [name.encode()], descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


def _send(control: socket.socket, head: dict[str, Any]) -> bool:
    try:
        control.send(json.dumps(head).encode())
    except OSError:
        return False
    return True


def _close_all_but(*descriptors: int) -> None:
    """Close everything else from 3 on."""
    start = 3
    for descriptor in sorted(descriptors):
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, 1 << 20)


def _remove_cgroups(folder: str) -> None:
    """Remove a tree of empty cgroups."""
    for parent, _, _ in os.walk(folder, topdown=False):
        try:
            os.rmdir(parent)
        except OSError:
            pass
