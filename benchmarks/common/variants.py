"""Variants of calling one server. Each runs in a process of its own; all are started side by side."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.common.baselines import Baseline
from benchmarks.common.server_commands import ServerCommand
from benchmarks.common.subprocess_worker import Worker, WorkerFailed


@dataclass(frozen=True)
class Variant:
    """One row of the table: an opener of `callers`, its label, and the event loop that it runs on.

    environment: where its packages are; None: they are toolhub's own.
    spawns: whether every call starts a process. has_hub: whether a process in between does part of the work.
    """

    opener: str
    label: str
    uvloop: bool = False
    environment: Baseline | None = None
    spawns: bool = False
    has_hub: bool = False


def start(
    server: ServerCommand, variants: tuple[Variant, ...], stack: ExitStack, notes: list[str]
) -> dict[Variant, Worker]:
    """Return the workers that are ready (see `call_load.open_load`); the notes name each variant that is not."""
    workers: dict[Variant, Worker] = {}
    for variant in variants:
        python = variant.environment.python() if variant.environment else sys.executable
        if python is None:
            assert variant.environment is not None
            why = f"{variant.environment.package} is not installed: {variant.environment.command}"
            notes.append(_left_out(server, variant, why))
            continue
        arguments = {"variant": variant.opener, "server": server.to_json()}
        worker = Worker("benchmarks.common.call_load:open_load", arguments, python=python, uvloop=variant.uvloop)
        workers[variant] = stack.enter_context(worker)
    for variant in list(workers):
        try:
            workers[variant].wait_ready()
        except WorkerFailed as exc:
            del workers[variant]
            notes.append(_left_out(server, variant, str(exc)))
    return workers


def _left_out(server: ServerCommand, variant: Variant, why: str) -> str:
    return f"Left out of the {server.name} table: {variant.label} ({why})."


def version_notes(variants: Iterable[Variant]) -> list[str]:
    """Name the packages of variants that have an environment of their own, one sentence for each environment."""
    environments = dict.fromkeys(variant.environment for variant in variants if variant.environment)
    found = filter(None, (environment.versions() for environment in environments))
    return [f"In an environment of its own, asking the same servers: {versions}." for versions in found]
