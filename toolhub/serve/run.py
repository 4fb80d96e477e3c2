"""Run a hub as a process: bind the sockets, serve, and stop in order."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import functools
import gc
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import anyio
import anyio.abc
import uvicorn

from toolhub.config import Config, SandboxSettings
from toolhub.errors import ConfigError
from toolhub.hub import Hub
from toolhub.serve.app import Application
from toolhub.serve.guard import is_loopback
from toolhub.serve.protocol import ConnectionLimiter, LimitedProtocol

_HOSTS = "127.0.0.1 is for this machine only, 0.0.0.0 for all of its networks"
OnReady = Callable[[list[str], list[tuple[str, str]]], None]
"""Receives the addresses, and (name, path) of every frontend."""
Until = Callable[[], Awaitable[None]]

# Requests that are ended after the drain time still get an answer. This is the time for it.
ANSWER_S = 2.0
# A call makes some hundred objects, and several hundred calls are in flight: with Python's default of 700 they are
# promoted while they run, and full collections follow. The thresholds of the older generations are lower than Python's
# 10 and 10, with which the cycles of ended tasks stayed until 5,000 tasks had ended. A full collection takes
# milliseconds, because it does not visit what is frozen.
_GC_THRESHOLDS = (20_000, 2, 2)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BindSettings:
    """Where to listen, and the token that clients need. host: None: no TCP socket."""

    host: str | None
    port: int
    uds: Path | None
    token: str | None
    allow_inline: bool
    is_private: bool = False

    def with_token(self, sandbox: SandboxSettings) -> BindSettings:
        """Return settings with a token if other machines, or code in a sandbox, can reach the TCP socket."""
        if self.host is None or self.token or (is_loopback(self.host) and not reaches_loopback(sandbox)):
            return self
        return dataclasses.replace(self, token=secrets.token_urlsafe(24))


def reaches_loopback(sandbox: SandboxSettings) -> bool:
    """Whether code in a sandbox can connect to this machine's loopback addresses, and so to the hub.

    It can in a profile with the host's network. With the backend `subprocess` it can in every profile.
    """
    return sandbox.backend == "subprocess" or any(one.network == "host" for one in sandbox.profiles.values())


class _UvicornServer(uvicorn.Server):
    """uvicorn without its signal handlers. The hub handles signals itself, once for all its listeners."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def bind_tcp(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ConfigError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except OSError as exc:
        raise ConfigError(
            f"cannot listen on the host {host!r}: {exc.strerror}; --host (or hub.host) is a name or an address without "
            f"scheme and port; {_HOSTS}"
        ) from exc
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as exc:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {exc.strerror}; {_advice_on_bind(exc.errno)}") from exc
    return listener


def _advice_on_bind(code: int | None) -> str:
    if code == errno.EADDRNOTAVAIL:
        return f"this machine does not have the address of --host (or hub.host); {_HOSTS}"
    if code == errno.EADDRINUSE:
        return "another program has the port, perhaps a hub that runs already; choose another with --port (0: any free)"
    if code == errno.EACCES:
        return "ports below 1024 need root; choose another with --port (0: any free)"
    return "correct --host and --port"


def bind_unix(path: Path) -> socket.socket:
    """Return a listening socket with mode 0600. Replaces a socket file without a listener. Raises ConfigError."""
    if _is_answering(path):
        raise ConfigError(f"another hub is listening on {path}; use it, or choose another --uds")
    if path.exists() and not path.is_socket():
        found = "it is a folder" if path.is_dir() else "a file that is not a socket exists there"
        raise ConfigError(f"cannot listen on {path}: {found}; choose another --uds")
    folder = path.parent
    if not folder.parent.is_dir():
        raise ConfigError(f"cannot listen on {path}: there is no folder {folder}; create it, or choose another --uds")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        path.unlink(missing_ok=True)
        _bind_for_owner(listener, path)
        listener.listen(1024)
    except OSError as exc:
        listener.close()
        if isinstance(exc, PermissionError):
            raise ConfigError(f"cannot listen on {path}: you may not write to {folder}; choose another --uds") from exc
        raise ConfigError(f"cannot listen on {path}: {exc.strerror or exc}; choose another --uds") from exc
    return listener


def _bind_for_owner(listener: socket.socket, path: Path) -> None:
    old_mask = os.umask(0o177)  # before bind, so that other users cannot connect even for a moment
    try:
        listener.bind(str(path))
    finally:
        os.umask(old_mask)


def _is_answering(path: Path) -> bool:
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


async def serve(config: Config, bind: BindSettings, *, on_ready: OnReady, until: Until | None = None) -> None:
    """Serve until SIGINT or SIGTERM, or until `until` returns. A second signal ends the hub at once.

    SIGHUP is ignored, so that a hub outlives the terminal or the ssh connection that started it.

    on_ready: called when connections are accepted. until: runs from then on.
    """
    with contextlib.ExitStack() as closing:
        # The hub removes its socket file before anything else, so that it never removes the file of a successor.
        socket_file = closing.enter_context(contextlib.ExitStack())
        listeners = _bind_all(bind, closing, socket_file)
        async with Hub(config) as hub:
            application = Application(
                hub,
                token=bind.token,
                allow_inline=bind.allow_inline,
                lease=float("inf") if bind.is_private else None,
            )
            async with application.running():
                servers = [_UvicornServer(_settings(application, config)) for _ in listeners]
                shutdown = _Shutdown(application, servers, socket_file)
                tune_garbage_collector()
                await _serve_all(listeners, shutdown, config.hub.drain_s, until, on_ready)
        logger.info("the hub has stopped, and every server that it started has ended")


def tune_garbage_collector() -> None:
    """Spare the collector what a hub loads once and keeps: modules and schemas, some hundred thousand objects.

    For a process that only serves. Visiting them all took a third of the CPU of a hub with 120 busy tasks.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _bind_all(
    bind: BindSettings, closing: contextlib.ExitStack, socket_file: contextlib.ExitStack
) -> list[tuple[str, socket.socket]]:
    listeners: list[tuple[str, socket.socket]] = []
    if bind.host is not None:
        tcp = closing.enter_context(bind_tcp(bind.host, bind.port))
        host = f"[{bind.host}]" if ":" in bind.host else bind.host
        listeners.append((f"http://{host}:{tcp.getsockname()[1]}", tcp))
    if bind.uds is not None:
        unix = closing.enter_context(bind_unix(bind.uds))
        socket_file.callback(_remove_socket, bind.uds, with_folder=bind.is_private)
        listeners.append((f"unix://{bind.uds}", unix))
    return listeners


def _settings(application: Application, config: Config) -> uvicorn.Config:
    limits = config.hub.http
    protocol = functools.partial(LimitedProtocol, limits=limits, limiter=ConnectionLimiter(limits))
    return uvicorn.Config(
        application.asgi,
        http=cast(type[asyncio.Protocol], protocol),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=round(config.hub.drain_s + ANSWER_S),
        timeout_keep_alive=75,
        server_header=False,
        proxy_headers=False,
    )


class _Shutdown:
    """The shutdown: accept no new requests, give the running ones time, then answer the rest with an error."""

    def __init__(
        self, application: Application, servers: list[_UvicornServer], socket_file: contextlib.ExitStack
    ) -> None:
        self.servers = servers
        self.has_begun = False
        self.frontends = application.frontends
        self._application = application
        self._socket_file = socket_file

    def begin(self) -> int:
        """Accept no more requests; return how many are running."""
        self.has_begun = True
        self._socket_file.close()
        self._application.end_streams()
        for server in self.servers:
            server.should_exit = True
        return self._application.requests_in_flight

    async def finish(self, drain: float) -> None:
        """Wait `drain` seconds for requests to end by themselves."""
        await anyio.sleep(drain)
        if (left := self._application.requests_in_flight) > 0:
            logger.warning("%d requests were still running after %g s (hub.drain_s) and are cancelled", left, drain)
        self._application.end_requests()


async def _serve_all(
    listeners: list[tuple[str, socket.socket]],
    shutdown: _Shutdown,
    drain: float,
    until: Until | None,
    on_ready: OnReady,
) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, shutdown, drain, tasks)
        async with anyio.create_task_group() as serving:
            for server, (_, listener) in zip(shutdown.servers, listeners, strict=True):
                serving.start_soon(server.serve, [listener])
            for server in shutdown.servers:
                while not server.started:
                    await anyio.sleep(0.005)
            frontends = [(frontend.announcement(), frontend.path) for frontend in shutdown.frontends]
            on_ready([address for address, _ in listeners], frontends)
            where = ", ".join(address for address, _ in listeners)
            logger.info("the hub is ready at %s (pid %d)", where, os.getpid())
            if until is not None:
                tasks.start_soon(_stop_after, until, shutdown)
        tasks.cancel_scope.cancel()


async def _stop_on_signal(shutdown: _Shutdown, drain: float, tasks: anyio.abc.TaskGroup) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async for number in signals:
            if number == signal.SIGHUP:
                logger.warning(
                    "SIGHUP is ignored: the hub keeps running without its terminal, and it cannot reload its config. "
                    "To stop it, send SIGTERM. To use a changed config, stop it and start it again"
                )
                continue
            if shutdown.has_begun:
                # The supervisor notices the hub's end and kills everything that is left.
                logger.warning("got a second signal: the hub ends at once")
                os._exit(130)
            running = shutdown.begin()
            name = signal.Signals(number).name
            logger.info("got %s: the hub stops; %d running requests have %g s to end", name, running, drain)
            tasks.start_soon(shutdown.finish, drain)


async def _stop_after(until: Until, shutdown: _Shutdown) -> None:
    await until()
    shutdown.begin()
    await shutdown.finish(0)  # the only client has ended


async def wait_stdin_end() -> None:
    """Wait for the end of stdin. The parent process of a private hub holds the other end."""
    os.set_blocking(sys.stdin.fileno(), False)
    while True:
        await anyio.wait_readable(sys.stdin.fileno())
        try:
            if not os.read(sys.stdin.fileno(), 4096):
                break
        except BlockingIOError:
            continue


def _remove_socket(path: Path, *, with_folder: bool) -> None:
    path.unlink(missing_ok=True)
    if with_folder:
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # made for this hub; it stays if it holds other files
