"""LMCache's coordinator beside a vLLM server: keeps and loads prefixes in memory below the accelerator's.

It names prefixes by their token ids, so the engine must be able to return the tokens of a conversation. The coordinator
counts pins: each pin must be released exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from toolhub_agent.kv_hints.engines import Command, EngineAdapter, get_json
from toolhub_agent.kv_hints.signals import Prompt
from toolhub_agent.types import Json

if TYPE_CHECKING:
    import httpx2


@dataclass(frozen=True, slots=True)
class LMCacheNode:
    """The LMCache server beside an engine. world_size: ranks of the engine, as the server registered."""

    instance_id: str
    world_size: int


class LMCacheCommands:
    """The requests to a coordinator."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def __repr__(self) -> str:
        return f"<lmcache at {self.url}>"

    async def node_of(self, http: httpx2.AsyncClient, endpoint: str) -> LMCacheNode | None:
        """The node that serves an engine: the only node, or the one on the engine's host; None if that is unclear."""
        if (await http.get(f"{self.url}/healthz")).status_code != 200:
            return None
        found = (await get_json(http, f"{self.url}/instances")).get("instances")
        nodes = [node for node in found if isinstance(node, dict)] if isinstance(found, list) else []
        if len(nodes) > 1:
            nodes = [node for node in nodes if node.get("ip") == urlsplit(endpoint).hostname]
        return _parse_node(nodes[0]) if len(nodes) == 1 else None

    def prefetch(self, node: LMCacheNode, model: str, tokens: list[int], salt: str) -> Command:
        body = {"instance_id": node.instance_id, **_token_fields(node, model, tokens, salt)}
        return Command("POST", f"{self.url}/cache/prefetches", body)

    def pin(self, node: LMCacheNode, model: str, tokens: list[int], salt: str) -> Command:
        return Command("POST", f"{self.url}/cache/pins", _token_fields(node, model, tokens, salt))

    def unpin(self, pinned: Command) -> Command:
        """The command that undoes a `pin`."""
        return Command("DELETE", pinned.url, pinned.body)


def _token_fields(node: LMCacheNode, model: str, tokens: list[int], salt: str) -> Json:
    return {"model_name": model, "world_size": node.world_size, "token_ids": tokens, "cache_salt": salt}


def _parse_node(found: Json) -> LMCacheNode | None:
    name, metadata = found.get("instance_id"), found.get("metadata")
    size: Any = metadata.get("world_size", 1) if isinstance(metadata, dict) else 1
    if not isinstance(name, str) or not str(size).isdigit():
        return None
    return LMCacheNode(name, max(1, int(size)))


class LMCacheClient:
    """A coordinator and the HTTP clients for it and the engines. Raises httpx2.HTTPError if one does not answer."""

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        """http: for the coordinator alone; it must not carry the keys of model servers."""
        self._lmcache = LMCacheCommands(url)
        self._http = http
        self._nodes: dict[str, LMCacheNode] = {}

    async def prefetch(self, engine: httpx2.AsyncClient, adapter: EngineAdapter, prompt: Prompt) -> bool:
        """Load the prompt's chunks from the second tier; False if there is nothing to load or no node is known."""
        if (found := await self._content(engine, adapter, prompt)) is None:
            return False
        node, model, tokens, salt = found
        answer = await self._send(self._lmcache.prefetch(node, model, tokens, salt))
        return bool(answer.status_code < 300 and answer.json().get("status") == "submitted")

    async def pin(self, engine: httpx2.AsyncClient, adapter: EngineAdapter, prompt: Prompt) -> Command | None:
        """Pin the prompt's chunks; return the command that unpins them."""
        if (found := await self._content(engine, adapter, prompt)) is None:
            return None
        command = self._lmcache.pin(*found)
        answer = await self._send(command)
        return self._lmcache.unpin(command) if answer.status_code < 300 else None

    async def unpin(self, command: Command) -> None:
        await self._send(command)

    async def _content(
        self, engine: httpx2.AsyncClient, adapter: EngineAdapter, prompt: Prompt
    ) -> tuple[LMCacheNode, str, list[int], str] | None:
        if (node := await self._node(adapter.endpoint)) is None:
            return None
        tokens = await adapter.tokens(engine, prompt)
        model = prompt.body.get("model")
        if tokens is None or not isinstance(model, str):
            return None
        salt = prompt.body.get("cache_salt")
        return node, model, tokens, salt if isinstance(salt, str) else ""

    async def _node(self, endpoint: str) -> LMCacheNode | None:
        if endpoint not in self._nodes:
            node = await self._lmcache.node_of(self._http, endpoint)
            if node is None:
                return None
            self._nodes[endpoint] = node
        return self._nodes[endpoint]

    async def _send(self, command: Command) -> httpx2.Response:
        return await self._http.request(command.method, command.url, json=command.body)
