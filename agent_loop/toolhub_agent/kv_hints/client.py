"""Sends the requests of one conversation's hints.

Each request has a timeout. The endpoint records whether it succeeded. The answer to a prefetch may take longer, because
a prefill does.
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

# The longest time for a prefetch. Dynamo ends its own prefetches after the same time.
PREFETCH_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class HintClient:
    """A method that fails records the failure at the endpoint and raises the error."""

    session: str
    context: HintContext

    async def ask(self, endpoint: HintEndpoint, prompt: Prompt) -> None:
        """Detect the endpoint's engine and check how its chat template renders such prompts."""
        with self._recording_health(endpoint), anyio.fail_after(self.context.settings.timeout_s):
            await endpoint.ask(self.context.http(endpoint.url), prompt)

    async def prefetch(
        self, endpoint: HintEndpoint, adapter: EngineAdapter, prompt: Prompt, request_id: str
    ) -> Usage | None:
        """Send a prefetch and return its usage; None if LMCache loads the prefix, because LMCache reports no usage."""
        if await self._prefetched_by_lmcache(endpoint, adapter, prompt):
            return None
        with self._recording_health(endpoint), anyio.fail_after(PREFETCH_TIMEOUT_S):
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
        """Abort a prefetch, at engines that notice a closed connection late."""
        if (command := adapter.abort(request_id)) is not None:
            await self._send_checked(endpoint, command)

    async def release(self, endpoint: HintEndpoint, prompt: Prompt | None) -> bool:
        """Tell the engine that the conversation is over; False if the engine takes no such request."""
        headers = dict(self.context.headers_of(self.session))
        adapter = endpoint.adapter
        command = adapter.release(self.session, prompt, headers) if adapter is not None else None
        if command is not None:
            await self._send_checked(endpoint, command)
        return command is not None

    async def pin(self, endpoint: HintEndpoint, adapter: EngineAdapter, prompt: Prompt) -> Command | None:
        """Have LMCache keep the prompt. Return the command that undoes it; None if nothing was pinned."""
        if self.context.lmcache is None:
            return None
        with anyio.fail_after(self.context.settings.timeout_s):
            return await self.context.lmcache.pin(self.context.http(endpoint.url), adapter, prompt)

    async def unpin(self, pinned: Command) -> None:
        if self.context.lmcache is not None:
            with anyio.fail_after(self.context.settings.timeout_s):
                await self.context.lmcache.unpin(pinned)

    async def _prefetched_by_lmcache(self, endpoint: HintEndpoint, adapter: EngineAdapter, prompt: Prompt) -> bool:
        if self.context.lmcache is None:
            return False
        try:
            with anyio.fail_after(self.context.settings.timeout_s):
                return await self.context.lmcache.prefetch(self.context.http(endpoint.url), adapter, prompt)
        except Exception as exc:
            # The engine can still prefetch it.
            self.context.counters.hints_failed += 1
            logger.debug("LMCache: %s", type(exc).__name__)
            return False

    async def _send_checked(self, endpoint: HintEndpoint, command: Command) -> None:
        with self._recording_health(endpoint), anyio.fail_after(self.context.settings.timeout_s):
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
    def _recording_health(self, endpoint: HintEndpoint) -> Iterator[None]:
        try:
            yield
        except Exception:
            endpoint.failed()
            raise
        endpoint.worked()
