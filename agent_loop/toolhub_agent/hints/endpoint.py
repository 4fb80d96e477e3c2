"""What the hints know of one endpoint: its engine, how fast it prefills, whether prefill-ahead helps there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from toolhub_agent.hints.adapters import Adapter, adapter_of, identify
from toolhub_agent.hints.cost import PrefillCost
from toolhub_agent.hints.gain import Gain
from toolhub_agent.hints.signals import Prompt
from toolhub_agent.hints.template import TemplateChecks, Verdict
from toolhub_agent.hints.timing import Skip

if TYPE_CHECKING:
    import httpx2

    from toolhub.config.llm import EngineName, HintSettings

# Failures in a row before an endpoint is left alone, and for how long: an engine's restart takes about as much.
_FAILURES, BACK_OFF_S = 3, 30.0


class Endpoint:
    """One model server as the hints see it. `adapter` is None until it is known what it is."""

    def __init__(self, url: str, *, engine: EngineName, settings: HintSettings) -> None:
        self.url = url
        self.adapter: Adapter | None = None if engine == "auto" else self._adapter(engine, url, settings)
        self.cost = PrefillCost()
        self.gain = Gain(always=settings.mode == "on")
        self.checks = TemplateChecks()
        self._settings = settings
        self._is_probed = self._asking = False
        self._failures = 0
        self._quiet_until = -float("inf")

    def __repr__(self) -> str:
        return f"<Endpoint {self.url}: {self.adapter!r}, {self.cost!r}>"

    @property
    def is_backed_off(self) -> bool:
        return anyio.current_time() < self._quiet_until

    @property
    def why_disabled(self) -> str | None:
        if self.gain.is_off:
            return "no measured gain"
        if self.checks.rewrites:
            return "the chat template rewrites history"
        return "endpoint refuses" if self._failures >= _FAILURES else None

    def needs_asking(self, prompt: Prompt) -> bool:
        return not self._asking and not self.is_backed_off and (not self._is_probed or not self.checks.verdict(prompt))

    async def ask(self, http: httpx2.AsyncClient, prompt: Prompt) -> None:
        """Find out what it is and can do, and how it renders such prompts; by one session at a time."""
        self._asking = True
        try:
            if self.adapter is None:
                engine = await identify(http, self.url)
                self.adapter = self._adapter(engine, self.url, self._settings)
            if not self._is_probed:
                await self.adapter.probe(http)
                self._is_probed = True
            if self.checks.verdict(prompt) is None:
                await self.checks.check(http, self.adapter, prompt)
        finally:
            self._asking = False

    def refusal(self, prompt: Prompt) -> Skip | None:
        """Why such a prompt must not be warmed here, as far as the server itself goes."""
        if self.is_backed_off:
            return Skip.BACKED_OFF
        if self.adapter is None or (verdict := self.checks.verdict(prompt)) is None:
            return Skip.ENGINE_UNKNOWN
        return Skip.TEMPLATE if verdict is Verdict.REWRITES else None

    def failed(self) -> None:
        self._failures += 1
        if self._failures >= _FAILURES:
            self._quiet_until = anyio.current_time() + BACK_OFF_S

    def worked(self) -> None:
        self._failures = 0

    @staticmethod
    def _adapter(engine: EngineName, url: str, settings: HintSettings) -> Adapter:
        return adapter_of(engine, url, pin=settings.pin)
