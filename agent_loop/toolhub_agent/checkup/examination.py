"""All checks in their order, with a bound on the whole."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
import httpx2

from toolhub.config.llm import LlmSettings
from toolhub_agent.checkup.caching import check_caching
from toolhub_agent.checkup.finding import Finding
from toolhub_agent.checkup.hinting import check_hints
from toolhub_agent.checkup.identity import Identity, findings, read_identity
from toolhub_agent.checkup.load import load_finding, read_page
from toolhub_agent.checkup.server import ModelServer, Unanswered
from toolhub_agent.checkup.templates import check_templates
from toolhub_agent.checkup.tools import check_tools

# A dozen requests of 3,000 tokens take seconds; on a server that is at its limit each may take its own bound.
LONGEST_S = 240.0


@dataclass(frozen=True)
class Report:
    """error: why there was nothing to examine, fix: what to try; both empty if the server answered."""

    url: str
    findings: tuple[Finding, ...] = ()
    error: str = ""
    fix: str = ""

    @property
    def is_reachable(self) -> bool:
        return not self.error


async def examine(
    http: httpx2.AsyncClient,
    url: str,
    settings: LlmSettings,
    *,
    wanted_context: int | None = None,
    progress: Callable[[str], None] = lambda _text: None,
    secrets: tuple[str, ...] = (),
) -> Report:
    """http: with key and headers set. url: with `/v1`. progress: told what is being looked at."""
    progress("is it there?")
    try:
        identity = await read_identity(http, url, settings)
    except Unanswered as exc:
        return Report(url, error=str(exc), fix=_fix(exc))
    server = ModelServer(http, url, model=identity.model, adapter=identity.adapter, secrets=secrets)
    found = findings(identity, wanted_context=wanted_context)
    checks = _Checks(server, identity, settings, progress, found)
    with anyio.move_on_after(LONGEST_S) as bound:
        await checks.run()
    if bound.cancelled_caught:
        found.append(Finding("time", "weaker", f"not all was looked at within {LONGEST_S:.0f} s", "is it very busy?"))
    return Report(url, tuple(found))


@dataclass
class _Checks:
    server: ModelServer
    identity: Identity
    settings: LlmSettings
    progress: Callable[[str], None]
    found: list[Finding]

    async def run(self) -> None:
        context = self.identity.context_tokens
        page = await self._page()
        await self._add("prefix cache", lambda: check_caching(self.server, context))
        await self._add("template", lambda: check_templates(self.server, context))
        pin = self.settings.hints.pin
        await self._add("hints", lambda: check_hints(self.server, page, context, pin=pin))
        await self._add("native tool calls", lambda: check_tools(self.server))

    async def _page(self) -> str:
        """The metrics before anything is asked of the engine: the queue of others."""
        self.progress("metrics")
        try:
            page = await read_page(self.server)
        except Unanswered as exc:
            self.found.append(Finding("metrics", "weaker", str(exc)))
            return ""
        self.found.append(load_finding(self.server, page))
        return page

    async def _add(self, name: str, check: Callable[[], Awaitable[list[Finding]]]) -> None:
        self.progress(name)
        try:
            self.found += await check()
        except Unanswered as exc:
            self.found.append(Finding(name, "weaker", str(exc), "try it by hand; the other checks do not depend on it"))


def _fix(exc: Unanswered) -> str:
    if exc.status in (401, 403):
        return (
            "put the key into the config (`llm: api_key:`) with this address under `llm: endpoints:`, and name --config"
        )
    if exc.status == 404:
        return "is the address right? it ends in /v1, as in http://127.0.0.1:8000/v1"
    return "is the server running, and is the address right? `toolhub llm-command` shows how to start one"
