"""Ways of calling one server: each a contestant in a process of its own, all started side by side."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.common.baselines import Environment
from benchmarks.common.server_commands import ServerCommand
from benchmarks.common.subprocess_worker import Worker, WorkerFailed


@dataclass(frozen=True)
class Way:
    """One row: an opener of `contestants`, how it is called in the table, and the event loop it runs on.

    environment: where its packages are; None: they are toolhub's own.
    spawns: whether every call starts a process. has_hub: whether a process in between does part of the work.
    """

    opener: str
    label: str
    uvloop: bool = False
    environment: Environment | None = None
    spawns: bool = False
    has_hub: bool = False


def start(server: ServerCommand, ways: tuple[Way, ...], stack: ExitStack, notes: list[str]) -> dict[Way, Worker]:
    """Return those that are ready to be asked (see `load.open_load`); one that cannot is named in the notes."""
    crew: dict[Way, Worker] = {}
    for way in ways:
        python = way.environment.python() if way.environment else sys.executable
        if python is None:
            assert way.environment is not None
            why = f"{way.environment.package} is not installed: {way.environment.command}"
            notes.append(_left_out(server, way, why))
            continue
        arguments = {"contestant": way.opener, "server": server.to_json()}
        worker = Worker("benchmarks.common.call_load:open_load", arguments, python=python, uvloop=way.uvloop)
        crew[way] = stack.enter_context(worker)
    for way in list(crew):
        try:
            crew[way].wait_ready()
        except WorkerFailed as exc:
            del crew[way]
            notes.append(_left_out(server, way, str(exc)))
    return crew


def _left_out(server: ServerCommand, way: Way, why: str) -> str:
    return f"Left out of the {server.name} table: {way.label} ({why})."


def version_notes(ways: Iterable[Way]) -> list[str]:
    """Name what ways in environments of their own consist of, a sentence for each environment."""
    environments = dict.fromkeys(way.environment for way in ways if way.environment)
    found = filter(None, (environment.versions() for environment in environments))
    return [f"In an environment of its own, asking the same servers: {versions}." for versions in found]
