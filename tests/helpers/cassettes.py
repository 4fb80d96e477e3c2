"""A hub that records or replays, over a server made of functions with a notebook as its state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolhub import Hub, parse_config
from toolhub.channel.memory import MemoryServer, text_result
from toolhub.model import Json

READS = {"policy": {"read": {"read_only": True}, "search": {"read_only": True}}}


def a_notebook() -> MemoryServer:
    """A server with `write` (changes its notes) and `read`, and `search`, whose answers differ each time."""
    notes: list[Any] = []
    searches: list[Any] = []

    async def write(arguments: Mapping[str, Any]) -> Json:
        notes.append(arguments.get("note"))
        return text_result(f"{len(notes)} notes")

    async def read(arguments: Mapping[str, Any]) -> Json:
        return text_result(repr(notes))

    async def search(arguments: Mapping[str, Any]) -> Json:
        searches.append(arguments)
        return text_result(f"result {len(searches)} for {arguments.get('q')}")

    return MemoryServer(write=write, read=read, search=search)


def a_taping_hub(folder: Path, mode: str, server: MemoryServer, **more: Any) -> Hub:
    """A hub with the server `notes`, which keeps state."""
    cassette = {"dir": str(folder), "mode": mode} | more.pop("cassette", {})
    servers = more.pop("servers", {"notes": {"command": "unused", "tools": READS}})
    config = {"hub": {"cassette": cassette, "state_dir": str(folder) + "-state"}, "servers": servers}
    return Hub(parse_config(config | more), open_channel=server.open)
