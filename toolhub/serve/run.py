"""Run a hub as a process: bind, serve, and stop well."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc
import uvicorn

from toolhub.config import Config
from toolhub.errors import ConfigError
from toolhub.hub import Hub
from toolhub.serve.app import Application
from toolhub.serve.guard import is_loopback


@dataclass(frozen=True)
class Doors:
    """Where to listen and who may come in. `host` None means no TCP door."""

    host: str | None
    port: int
    uds: Path | None
    token: str | None
    allow_inline: bool
    is_private: bool = False

    def with_token(self) -> Doors:
        """A bind that others can reach gets a token if it has none."""
        if self.host is None or is_loopback(self.host) or self.token:
            return self
        return Doors(self.host, self.port, self.uds, secrets.token_urlsafe(24), self.allow_inline, self.is_private)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the hub has to end first, and two servers cannot both own Ctrl-C."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def bind_tcp(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ConfigError with the way out."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as exc:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {exc.strerror}; choose another with --port (0 takes any free one)"
        ) from exc
    return listener


def bind_unix(path: Path) -> socket.socket:
    """Return a listening socket with mode 0600, replacing a dead one. Raises ConfigError."""
    if _is_answering(path):
        raise ConfigError(f"another hub is listening on {path}; use it, or choose another --uds")
    if path.exists() and not path.is_socket():
        raise ConfigError(f"{path} is there and is no socket, so it is left alone; choose another --uds")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        _bind_for_owner(listener, path)
        listener.listen(1024)
    except OSError as exc:
        listener.close()
        raise ConfigError(f"cannot listen on {path}: {exc.strerror or exc}; choose another --uds") from exc
    return listener


def _bind_for_owner(listener: socket.socket, path: Path) -> None:
    old_mask = os.umask(0o177)  # set before bind: a moment with open permissions would be enough
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


async def serve(config: Config, doors: Doors, *, on_ready: Callable[[list[str]], None]) -> None:
    """Serve until SIGINT or SIGTERM (or, if private, until stdin ends); a second signal ends it at once.

    on_ready: receives the addresses once connections are accepted.
    """
    listeners: list[tuple[str, socket.socket]] = []
    if doors.host is not None:
        tcp = bind_tcp(doors.host, doors.port)
        shown = f"[{doors.host}]" if ":" in doors.host else doors.host
        listeners.append((f"http://{shown}:{tcp.getsockname()[1]}", tcp))
    if doors.uds is not None:
        listeners.append((f"unix://{doors.uds}", bind_unix(doors.uds)))
    try:
        async with Hub(config) as hub:
            application = Application(
                hub,
                token=doors.token,
                allow_inline=doors.allow_inline,
                lease=float("inf") if doors.is_private else None,
            )
            async with application.running():
                await _serve_all(application, listeners, doors, config.hub.drain_s, on_ready)
    finally:
        _remove_socket(doors)


async def _serve_all(
    application: Application,
    listeners: list[tuple[str, socket.socket]],
    doors: Doors,
    drain: float,
    on_ready: Callable[[list[str]], None],
) -> None:
    settings = uvicorn.Config(
        application.asgi,
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=max(1, round(drain)),
        timeout_keep_alive=75,
        server_header=False,
    )
    servers = [(_Server(settings), listener) for _, listener in listeners]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, [server for server, _ in servers])
        if doors.is_private:
            tasks.start_soon(_stop_on_stdin_end, [server for server, _ in servers])
        async with anyio.create_task_group() as serving:
            for server, listener in servers:
                serving.start_soon(server.serve, [listener])
            for server, _ in servers:
                while not server.started:
                    await anyio.sleep(0.005)
            on_ready([address for address, _ in listeners])
        tasks.cancel_scope.cancel()


async def _stop_on_signal(servers: list[_Server]) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        count = 0
        async for _ in signals:
            count += 1
            if count > 1:
                # The supervisor sees our end and kills everything that is left.
                os._exit(130)
            for server in servers:
                server.should_exit = True


async def _stop_on_stdin_end(servers: list[_Server]) -> None:
    """A private hub lives exactly as long as somebody holds the other end of its stdin."""
    os.set_blocking(sys.stdin.fileno(), False)
    while True:
        await anyio.wait_readable(sys.stdin.fileno())
        try:
            if not os.read(sys.stdin.fileno(), 4096):
                break
        except BlockingIOError:
            continue
    for server in servers:
        server.should_exit = True
        server.force_exit = True  # its only clients are gone


def _remove_socket(doors: Doors) -> None:
    if doors.uds is None:
        return
    doors.uds.unlink(missing_ok=True)
    if doors.is_private:
        with contextlib.suppress(OSError):
            doors.uds.parent.rmdir()  # made for this hub alone; stays if anything else is in it
