"""Making flags, and refusing what an engine has none for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from toolhub.errors import ConfigError
from toolhub_agent.profiles.settings import Server


def flag(name: str, value: object = True) -> list[str]:
    """`--name value`; nothing for None and False, only the name for True, compact JSON for mappings."""
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{name}"]
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value, separators=(",", ":"))]
    # A float that is a whole number is written as one.
    return [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]


def switch(name: str, value: bool) -> list[str]:
    """`--name` or `--no-name`."""
    return [f"--{name}" if value else f"--no-{name}"]


def visible(server: Server) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, server.gpus))} if server.gpus else {}


def refuse(name: str, server: Server, unknown: Iterable[str]) -> None:
    """unknown: fields that the engine has no flag for, `chunking.dynamic` included.

    Raises ConfigError for those that ask for something.
    """
    for field in unknown:
        asked, default = _value(server, field), _value(type(server)(engine=server.engine), field)
        if asked != default:
            raise ConfigError(f"{server.engine} has no way to do that", key=f"{name}.{field}")


def _value(server: Server, field: str) -> Any:
    found: Any = server
    for part in field.split("."):
        found = getattr(found, part, None)
    return found
