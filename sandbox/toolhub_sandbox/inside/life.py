"""The last steps of every sandbox's first process, from any backend."""

from __future__ import annotations

import os
import socket
import traceback
from typing import NoReturn

from toolhub_sandbox.inside import isolate, syscalls
from toolhub_sandbox.inside.agent import Agent, Options
from toolhub_sandbox.inside.frames import encode
from toolhub_sandbox.inside.processes import count_threads

# One per controller in cgroup v1, one in v2.
_MAX_DOORS = 8


def live(hub: socket.socket, options: Options) -> NoReturn:
    """Give up all privileges, tell the hub, and serve it. The namespaces are entered, the files mounted."""
    syscalls.set_name("sbx-agent")
    listener = isolate.listen_for_proxy(options.proxy_port) if options.proxy_port else None
    os.environ.clear()
    os.environ.update(isolate.environment(options))
    isolate.lock(options)
    os.chdir(options.home)
    silence()
    introduce(hub, listener)
    _serve(hub, options)


def live_unisolated(hub: socket.socket, options: Options) -> NoReturn:
    """Be a sandbox that is none: limits, and a folder of its own, but the same files and network as the hub."""
    syscalls.set_name("sbx-agent")
    os.setsid()
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    os.environ.clear()
    os.environ.update(isolate.environment(options))
    isolate.set_limits(options, threads_before=count_threads(os.getuid()))
    os.chdir(options.home)
    introduce(hub, None)
    _serve(hub, options)


def _serve(hub: socket.socket, options: Options) -> NoReturn:
    isolate.limit_files()
    Agent(
        hub,
        options,
        become_worker=lambda: isolate.become_worker(options),
        become_shell=lambda: isolate.limit_code(options),
    ).serve()


def silence() -> None:
    """Let go of what stderr is to the hub: a sandbox must not be able to write there."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)


def introduce(hub: socket.socket, listener: socket.socket | None) -> None:
    """Send the hub what it needs to hold this sandbox: a pidfd, and the proxy's socket; wait until it said go."""
    own = os.pidfd_open(os.getpid())
    descriptors = [own] if listener is None else [own, listener.fileno()]
    socket.send_fds(hub, [encode({"event": "born"})], descriptors)
    os.close(own)
    if listener is not None:
        listener.close()
    data, doors, _, _ = socket.recv_fds(hub, 1, _MAX_DOORS)
    if not data:
        os._exit(0)
    for door in doors:  # into this sandbox's cgroups; nothing of the model's has run yet
        os.write(door, b"0")
        os.close(door)


def report(hub: socket.socket, exc: BaseException) -> None:
    """Tell the hub why there will be no sandbox, or none any more."""
    last = traceback.extract_tb(exc.__traceback__)[-1]
    try:
        hub.sendall(encode({"event": "failed", "why": f"{type(exc).__name__}: {exc} ({last.name})"}))
    except OSError:
        pass
