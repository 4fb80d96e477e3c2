"""Ways of calling one server: each a contestant in a process of its own, all started side by side."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.crew import Worker, WorkerFailed
from benchmarks.specs import ServerCommand

FASTMCP_PYTHON = "BENCH_FASTMCP_PYTHON"


@dataclass(frozen=True)
class Way:
    """One row: an opener of `contestants`, the event loop it runs on, and how it is called in the table."""

    opener: str
    label: str
    uvloop: bool = False


def start(server: ServerCommand, ways: tuple[Way, ...], stack: ExitStack, notes: list[str]) -> dict[Way, Worker]:
    """Return those that are ready to be asked (see `load.open_load`); one that cannot is named in the notes."""
    crew: dict[Way, Worker] = {}
    for way in ways:
        python = _fastmcp_python() if way.opener == "fastmcp" else sys.executable
        arguments = {"contestant": way.opener, "server": server.to_json()}
        worker = Worker("benchmarks.load:open_load", arguments, python=python, uvloop=way.uvloop)
        crew[way] = stack.enter_context(worker)
    for way in ways:
        try:
            crew[way].wait_ready()
        except WorkerFailed as exc:
            del crew[way]
            notes.append(f"Left out of the {server.name} table: {way.label} ({exc}{_advice(way)}).")
    return crew


def _fastmcp_python() -> str:
    """It may live in an environment of its own."""
    return os.environ.get(FASTMCP_PYTHON, sys.executable)


def fastmcp_note() -> str:
    """Its version, which the description of this interpreter cannot know."""
    show = "from importlib.metadata import version; print(version('fastmcp'), 'beside mcp', version('mcp'))"
    done = subprocess.run([_fastmcp_python(), "-c", show], capture_output=True, text=True)
    return f"The fastmcp client is {done.stdout.strip()}." if done.returncode == 0 else ""


def _advice(way: Way) -> str:
    if way.opener != "fastmcp":
        return ""
    return f"; pip install 'toolhub[bench]', or name a Python that has it in {FASTMCP_PYTHON}"
