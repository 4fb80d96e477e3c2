"""LMCache at work for conversations: finds the node of an endpoint, pins prefixes, gives each pin back once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolhub_agent.hints.adapters import Adapter, Command
from toolhub_agent.hints.adapters.lmcache import LmCache, Node
from toolhub_agent.hints.signals import Prompt

if TYPE_CHECKING:
    import httpx2


class Sidecar:
    """A coordinator and the clients to reach it and the engines. Raises httpx2.HTTPError where one does not answer."""

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        """http: for the coordinator alone; no keys of model servers go there."""
        self._lmcache = LmCache(url)
        self._http = http
        self._nodes: dict[str, Node] = {}

    async def prefetch(self, engine: httpx2.AsyncClient, adapter: Adapter, prompt: Prompt) -> bool:
        """Load the prompt's chunks from the second tier; False where there is nothing to load or nobody to ask."""
        if (found := await self._content(engine, adapter, prompt)) is None:
            return False
        node, model, tokens, salt = found
        answer = await self._send(self._lmcache.prefetch(node, model, tokens, salt))
        return bool(answer.status_code < 300 and answer.json().get("status") == "submitted")

    async def pin(self, engine: httpx2.AsyncClient, adapter: Adapter, prompt: Prompt) -> Command | None:
        """Protect the prompt's chunks; returns what gives the pin back."""
        if (found := await self._content(engine, adapter, prompt)) is None:
            return None
        command = self._lmcache.pin(*found)
        answer = await self._send(command)
        return self._lmcache.unpin(command) if answer.status_code < 300 else None

    async def unpin(self, command: Command) -> None:
        await self._send(command)

    async def _content(
        self, engine: httpx2.AsyncClient, adapter: Adapter, prompt: Prompt
    ) -> tuple[Node, str, list[int], str] | None:
        if (node := await self._node(adapter.endpoint)) is None:
            return None
        tokens = await adapter.tokens(engine, prompt)
        model = prompt.body.get("model")
        if tokens is None or not isinstance(model, str):
            return None
        salt = prompt.body.get("cache_salt")
        return node, model, tokens, salt if isinstance(salt, str) else ""

    async def _node(self, endpoint: str) -> Node | None:
        if endpoint not in self._nodes:
            node = await self._lmcache.node_of(self._http, endpoint)
            if node is None:
                return None
            self._nodes[endpoint] = node
        return self._nodes[endpoint]

    async def _send(self, command: Command) -> httpx2.Response:
        return await self._http.request(command.method, command.url, json=command.body)
