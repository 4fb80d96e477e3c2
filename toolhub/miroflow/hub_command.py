"""Which commands can start a hub here. The agent's own environment often cannot: it may need `mcp<2`."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence

from toolhub.errors import HubClosed

Command = tuple[str, ...]
ADVICE = (
    "install a hub with `pipx install 'toolhub[hub]'` (or use one without installing: "
    "TOOLHUB_COMMAND=\"uvx --from 'toolhub[hub]' toolhub\") and set TOOLHUB_COMMAND to its `toolhub`, "
    "or start `toolhub serve` yourself and set TOOLHUB_URL"
)


def hub_commands(given: str | Sequence[str] | None = None) -> list[Command]:
    """Return the commands to try, best first. One that was asked for is the only one.

    Raises HubClosed with the way out when there is none.
    """
    chosen = given or os.environ.get("TOOLHUB_COMMAND")
    if chosen:
        return [tuple(shlex.split(chosen) if isinstance(chosen, str) else chosen)]
    can_serve = _can_serve_here()
    script = shutil.which("toolhub")
    found: list[Command] = []
    if script and (can_serve or not _is_of_this_environment(script)):
        found.append((script,))
    if can_serve:
        found.append((sys.executable, "-m", "toolhub.cli"))
    if not found:
        raise HubClosed(f"there is no toolhub here that can run a hub; {ADVICE}")
    return found


def environment_for(command: Command, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a private hub.

    Our own variables speak of other hubs, and Python's search path of the agent's interpreter: a hub that runs on
    another one would import the wrong packages.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith("TOOLHUB_")}
    if not _is_of_this_environment(command[0]):
        for name in ("PYTHONPATH", "PYTHONHOME"):
            kept.pop(name, None)
    return kept


def _is_of_this_environment(program: str) -> bool:
    return os.path.dirname(os.path.abspath(program)) == os.path.dirname(os.path.abspath(sys.executable))


def _can_serve_here() -> bool:
    """Whether this interpreter has what a hub needs; found out without importing it."""
    try:
        major = int(importlib.metadata.version("mcp").split(".")[0])
        importlib.metadata.version("uvicorn")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return False
    return major >= 2
