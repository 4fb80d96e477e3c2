"""LMCache's coordinator, beside a vLLM: holds and loads prefixes by their token ids, below the accelerator.

It works with a conversation's tokens as the engine renders them, so the engine must be able to tell them. A pin is
counted by the coordinator and must be given back exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from toolhub_agent.hints.adapters.base import Command, get_json
from toolhub_agent.model import Json

if TYPE_CHECKING:
    import httpx2


@dataclass(frozen=True, slots=True)
class Node:
    """The LMCache server beside an engine. world_size: ranks of the engine, as the server registered."""

    instance_id: str
    world_size: int


class LmCache:
    """What can be asked of a coordinator."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def __repr__(self) -> str:
        return f"<lmcache at {self.url}>"

    async def node_of(self, http: httpx2.AsyncClient, endpoint: str) -> Node | None:
        """The node that serves an engine: the only one there is, or the one on its host; None if that is unclear."""
        if (await http.get(f"{self.url}/healthz")).status_code != 200:
            return None
        found = (await get_json(http, f"{self.url}/instances")).get("instances")
        nodes = [node for node in found if isinstance(node, dict)] if isinstance(found, list) else []
        if len(nodes) > 1:
            nodes = [node for node in nodes if node.get("ip") == urlsplit(endpoint).hostname]
        return _node(nodes[0]) if len(nodes) == 1 else None

    def prefetch(self, node: Node, model: str, tokens: list[int], salt: str) -> Command:
        body = {"instance_id": node.instance_id, **_content(node, model, tokens, salt)}
        return Command("POST", f"{self.url}/cache/prefetches", body)

    def pin(self, node: Node, model: str, tokens: list[int], salt: str) -> Command:
        return Command("POST", f"{self.url}/cache/pins", _content(node, model, tokens, salt))

    def unpin(self, pinned: Command) -> Command:
        """The opposite of a `pin`."""
        return Command("DELETE", pinned.url, pinned.body)


def _content(node: Node, model: str, tokens: list[int], salt: str) -> Json:
    return {"model_name": model, "world_size": node.world_size, "token_ids": tokens, "cache_salt": salt}


def _node(found: Json) -> Node | None:
    name, metadata = found.get("instance_id"), found.get("metadata")
    size: Any = metadata.get("world_size", 1) if isinstance(metadata, dict) else 1
    if not isinstance(name, str) or not str(size).isdigit():
        return None
    return Node(name, max(1, int(size)))
