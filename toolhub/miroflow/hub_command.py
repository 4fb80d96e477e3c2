"""Find the commands that can start a hub here. The agent's own environment often cannot: it may need `mcp<2`."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from toolhub.errors import HubClosed
from toolhub_runtime import install_command, requirement

HubCommand = tuple[str, ...]
ADVICE = (
    f"install a hub in an environment of its own with `{install_command('hub', program='uv tool install')}` "
    f"(or `{install_command('hub', program='pipx install')}`) and set TOOLHUB_COMMAND to its `toolhub` (or install "
    "nothing: "
    f'TOOLHUB_COMMAND="uvx --from {requirement("hub")} toolhub"), or start `toolhub serve` yourself and set TOOLHUB_URL'
)
# What only a hub imports. Beside an older SDK, or with the client alone, another environment has to run the hub.
HUB_NEEDS = (
    "httptools",
    "httpx2",
    "mcp",
    "opentelemetry",
    "prometheus_client",
    "pydantic",
    "rich",
    "starlette",
    "typer",
    "uvicorn",
    "yaml",
)
_HUB_SDK = 2


def hub_commands(given: str | Sequence[str] | None = None) -> list[HubCommand]:
    """Return the commands to try, best first. One that was asked for is the only one.

    Raises HubClosed if there is none; its message says what to install.
    """
    chosen = given or os.environ.get("TOOLHUB_COMMAND")
    if chosen:
        return [tuple(shlex.split(chosen) if isinstance(chosen, str) else chosen)]
    can_serve = _can_serve_here()
    found: list[HubCommand] = []
    for folder in os.get_exec_path():
        script = shutil.which("toolhub", path=folder)
        if script and (can_serve or not _is_of_this_environment(script)):
            found.append((script,))
            break
    if can_serve:
        found.append((sys.executable, "-m", "toolhub"))
    if not found:
        raise HubClosed(f"there is no toolhub here that can run a hub; {ADVICE}")
    return found


def environment_for(command: HubCommand, environ: Mapping[str, str]) -> dict[str, str]:
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
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return False
    return major >= _HUB_SDK and all(find_spec(name) for name in HUB_NEEDS)
