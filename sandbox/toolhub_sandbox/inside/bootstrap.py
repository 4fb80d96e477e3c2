"""How a fresh process becomes the agent of a sandbox: the last steps, the same for every backend.

The namespaces exist and the files are mounted. What is left: drop all privileges, hand the hub a pidfd, wait for its
go-ahead, move into the cgroups, serve.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import traceback
from typing import NoReturn

from toolhub_sandbox.inside import isolation, syscalls
from toolhub_sandbox.inside.agent import Agent, SandboxOptions
from toolhub_sandbox.inside.display import MATPLOTLIB_BACKEND, FigureBackendFinder
from toolhub_sandbox.inside.frames import FrameBuffer, encode, receive
from toolhub_sandbox.inside.processes import count_threads

# One per controller in cgroup v1, one in v2.
_MAX_CGROUP_FDS = 8


def run_agent(hub: socket.socket, options: SandboxOptions) -> NoReturn:
    """Drop all privileges, greet the hub, and serve it. The namespaces are entered and the files mounted."""
    syscalls.set_name("sbx-agent")
    listener = isolation.listen_for_proxy(options.proxy_port) if options.proxy_port else None
    os.environ.clear()
    os.environ.update(isolation.environment(options))
    isolation.drop_privileges(options)
    os.chdir(options.home)
    detach_stdio()
    handshake(hub, listener)
    _serve(hub, options)


def run_unisolated_agent(hub: socket.socket, options: SandboxOptions) -> NoReturn:
    """Serve without isolation: only limits and a home folder. Files and network are those of the hub."""
    syscalls.set_name("sbx-agent")
    os.setsid()
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    os.environ.clear()
    os.environ.update(isolation.environment(options))
    isolation.set_limits(options, threads_before=count_threads(os.getuid()))
    os.chdir(options.home)
    handshake(hub, None)
    _serve(hub, options)


def _serve(hub: socket.socket, options: SandboxOptions) -> NoReturn:
    isolation.limit_agent_files()
    Agent(
        hub,
        options,
        become_worker=lambda: isolation.become_worker(options),
        become_shell=lambda: isolation.limit_code_files(options),
    ).serve()


def detach_stdio() -> None:
    """Replace stdin, stdout and stderr with /dev/null: a sandbox must not write to the hub's pipes."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)


def handshake(hub: socket.socket, listener: socket.socket | None) -> None:
    """Send the hub a pidfd of this process and the proxy's socket, then wait for its answer.

    The answer brings the descriptors of this sandbox's cgroups; an end of the connection means that the hub is gone.
    """
    own = os.pidfd_open(os.getpid())
    descriptors = [own] if listener is None else [own, listener.fileno()]
    socket.send_fds(hub, [encode({"event": "spawned"})], descriptors)
    os.close(own)
    if listener is not None:
        listener.close()
    data, cgroup_fds, _, _ = socket.recv_fds(hub, 1, _MAX_CGROUP_FDS)
    if not data:
        os._exit(0)
    for cgroup_fd in cgroup_fds:  # moves into this sandbox's cgroups; none of the model's code has run yet
        os.write(cgroup_fd, b"0")
        os.close(cgroup_fd)


def report_failure(hub: socket.socket, exc: BaseException) -> None:
    """Tell the hub why the sandbox could not start, or why it ended."""
    last = traceback.extract_tb(exc.__traceback__)[-1]
    try:
        hub.sendall(encode({"event": "failed", "why": f"{type(exc).__name__}: {exc} ({last.name})"}))
    except OSError:
        pass


# --- below bubblewrap -------------------------------------------------------------------------------------------------


def bwrap_entry(hub_fd: str) -> NoReturn:
    hub = socket.socket(fileno=int(hub_fd))
    hub.set_inheritable(False)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.path[:] = [entry for entry in sys.path if os.path.exists(entry)]
        sys.meta_path.append(FigureBackendFinder())
        os.environ.update(MPLBACKEND=MATPLOTLIB_BACKEND, MPLCONFIGDIR="/tmp")  # noqa: S108 - its own
        head, _ = receive(hub, FrameBuffer(0))
        for name in head["preload"]:
            importlib.import_module(name)
        run_agent(hub, SandboxOptions(**head["options"]))
    except BaseException as exc:
        report_failure(hub, exc)
    finally:
        os._exit(1)
