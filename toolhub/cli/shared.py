"""Shared by several commands: finding the config, opening a task, logging and printing."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from toolhub.cli.help import width_of
from toolhub.errors import ConfigError, MissingExtra

if TYPE_CHECKING:  # they take 200 ms, which a command that uses a running hub need not pay
    from rich.console import Console

    from toolhub.config import Config

DEFAULT_FILES = ("hub.yaml", "hub.yml", ".mcp.json", "mcp.json")
DEFAULT_HUB = "http://127.0.0.1:8765"

T = TypeVar("T")


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """A temporary folder for the time of a command; first, remove the folders of commands that were killed."""
    from toolhub.scratch import Scratch, sweep

    sweep()
    scratch = Scratch(purpose)
    try:
        yield scratch.path
    finally:
        scratch.remove()


def find_config(path: Path | None) -> Path:
    """Return the config file to use. Raises ConfigError, which says how to make one."""
    if path is not None:
        return path
    for name in DEFAULT_FILES:
        if os.path.exists(name):
            return Path(name)
    raise ConfigError(
        f"no config found: {os.getcwd()} has none of {', '.join(DEFAULT_FILES)}. Write one with `toolhub init`, name "
        "another with --config, or use a running hub with --hub"
    )


def read_config(path: Path | None, servers: Collection[str] | None = None) -> Config:
    """Load the config file. Raises ConfigError, also when it configures no server.

    servers: leave the others out; None: none.
    """
    from toolhub.config import load_config

    found = find_config(path)
    config = load_config(found)
    if not config.servers:
        raise ConfigError("no servers are configured; add at least one under `servers`", path=str(found))
    for name in servers or ():
        if name not in config.servers:
            has = ", ".join(config.servers)
            raise ConfigError(f"--servers: there is no server {name!r} in the config; it has {has}", path=str(found))
    if servers is None:
        return config
    return config.model_copy(
        update={"servers": {name: config.servers[name] for name in config.servers if name in servers}}
    )


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Run `main` on uvloop if it is installed."""
    try:
        use_uvloop = importlib.util.find_spec("uvloop") is not None
    except (ImportError, ValueError):
        use_uvloop = False
    return anyio.run(main, backend_options={"use_uvloop": use_uvloop})


def log_to_stderr(level: str) -> None:
    """Log to stderr, because stdout is for results or MCP. Call it first, else the SDK installs its own handler."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        force=True,
    )
    for noisy in ("httpx2", "httpcore2", "mcp", "uvicorn"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))


@asynccontextmanager
async def open_task(
    config: Path | None,
    hub: str | None,
    token: str | None,
    task: str | None,
    servers: Collection[str] | None = None,
) -> AsyncIterator[Any]:
    """Hold a task of a running hub, or of a hub that runs only for this command.

    task: its id. A task that is already open on the running hub stays open. A new one ends with the block.
    servers: the only ones that a new task has; None: all.
    """
    if hub is not None:
        from toolhub.cli.borrowed import BorrowedTask, is_open
        from toolhub.client import connect

        async with connect(hub, token=token) as remote:
            if task is not None and await is_open(remote, task):
                yield BorrowedTask(remote, task)
                return
            chosen = None if servers is None else dict.fromkeys(servers)
            async with remote.task(task, servers=chosen, only_these=servers is not None) as remote_task:
                yield remote_task
        return
    loaded = read_config(config, servers)
    try:
        from toolhub.hub import Hub
    except ImportError as exc:
        raise MissingExtra("hub", "running servers in this process (use --hub to reach a hub elsewhere)") from exc
    log_to_stderr("warning")
    logging.getLogger("toolhub.servers").setLevel(logging.ERROR)  # the command itself says what failed
    async with Hub(loaded) as local, local.task(task) as local_task:
        yield local_task


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def console(*, stderr: bool = False) -> Console:
    """Return a console that fits its lines to a terminal, and wraps none in a pipe or a file."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, width=width_of(sys.stderr if stderr else sys.stdout))
