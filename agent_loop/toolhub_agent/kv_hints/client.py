"""Sends the requests of one conversation's hints: each once, within its budget, and the endpoint remembers how it went.

A prefetch has its budget for reaching the server; its answer may take as long as a prefill does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from toolhub_agent.kv_hints.context import HintContext, HintEndpoint
from toolhub_agent.kv_hints.engines import Command, EngineAdapter
from toolhub_agent.kv_hints.signals import Prompt
from toolhub_agent.llm.accumulator import usage_of
from toolhub_agent.types import Usage

if TYPE_CHECKING:
    import httpx2

logger = logging.getLogger("toolhub.hints")

# The longest prefill that anybody waits for ahead of time; Dynamo's own ends after as long.
PREFETCH_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class HintClient:
    """Its methods raise what goes wrong, after the endpoint was told."""

    session: str
    context: HintContext

    async def ask(self, endpoint: HintEndpoint, prompt: Prompt) -> None:
        """Learn what the endpoint is and how it renders such prompts."""
        with self._blaming(endpoint), anyio.fail_after(self.context.settings.timeout_s):
            await endpoint.ask(self.context.http(endpoint.url), prompt)

    async def prefetch(
        self, endpoint: HintEndpoint, adapter: EngineAdapter, prompt: Prompt, request_id: str
    ) -> Usage | None:
        """A prefetch; None where a cache beside the engine does it, so that nothing is known of it."""
        if await self._loaded_beside(endpoint, adapter, prompt):
            return None
        with self._blaming(endpoint), anyio.fail_after(PREFETCH_TIMEOUT_S):
            headers = dict(self.context.headers_of(self.session))
            began = anyio.current_time()
            answer = await self._send(endpoint, adapter.prefetch(self.session, prompt, request_id, headers), slow=True)
            if 400 <= answer.status_code < 500 and adapter.refused(answer.status_code, answer.text):
                began = anyio.current_time()
                again = adapter.prefetch(self.session, prompt, request_id, headers)
                answer = await self._send(endpoint, again, slow=True)
            found = answer.raise_for_status().json()
        usage = usage_of(found.get("usage") or {}, found)
        if usage.cached_tokens is not None:
            endpoint.cost.observe(usage.prompt_tokens, usage.cached_tokens, anyio.current_time() - began)
        return usage

    async def abort(self, endpoint: HintEndpoint, adapter: EngineAdapter, request_id: str) -> None:
        """Tell engines that do not notice a closed connection soon."""
        if (command := adapter.abort(request_id)) is not None:
            await self._tell(endpoint, command)

    async def release(self, endpoint: HintEndpoint, prompt: Prompt | None) -> bool:
        """The conversation is over; False where the engine wants to know nothing."""
        headers = dict(self.context.headers_of(self.session))
        adapter = endpoint.adapter
        command = adapter.release(self.session, prompt, headers) if adapter is not None else None
        if command is not None:
            await self._tell(endpoint, command)
        return command is not None

    async def pin(self, endpoint: HintEndpoint, adapter: EngineAdapter, prompt: Prompt) -> Command | None:
        """Have a cache beside the engine keep the prompt; gives back how that is undone."""
        if self.context.lmcache is None:
            return None
        with anyio.fail_after(self.context.settings.timeout_s):
            return await self.context.lmcache.pin(self.context.http(endpoint.url), adapter, prompt)

    async def unpin(self, pinned: Command) -> None:
        if self.context.lmcache is not None:
            with anyio.fail_after(self.context.settings.timeout_s):
                await self.context.lmcache.unpin(pinned)

    async def _loaded_beside(self, endpoint: HintEndpoint, adapter: EngineAdapter, prompt: Prompt) -> bool:
        if self.context.lmcache is None:
            return False
        try:
            with anyio.fail_after(self.context.settings.timeout_s):
                return await self.context.lmcache.prefetch(self.context.http(endpoint.url), adapter, prompt)
        except Exception as exc:
            # The engine itself can still be asked.
            self.context.counters.hints_failed += 1
            logger.debug("LMCache: %s", type(exc).__name__)
            return False

    async def _tell(self, endpoint: HintEndpoint, command: Command) -> None:
        with self._blaming(endpoint), anyio.fail_after(self.context.settings.timeout_s):
            (await self._send(endpoint, command)).raise_for_status()

    async def _send(self, endpoint: HintEndpoint, command: Command, *, slow: bool = False) -> httpx2.Response:
        import httpx2

        budget = self.context.settings.timeout_s
        return await self.context.http(endpoint.url).request(
            command.method,
            command.url,
            json=command.body,
            headers=dict(command.headers),
            timeout=httpx2.Timeout(budget, read=None if slow else budget),
        )

    @contextmanager
    def _blaming(self, endpoint: HintEndpoint) -> Iterator[None]:
        try:
            yield
        except Exception:
            endpoint.failed()
            raise
        endpoint.worked()
