"""What all conversations of a hinter share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from toolhub_agent.hints import ttl
from toolhub_agent.hints.durations import Durations
from toolhub_agent.hints.endpoint import Endpoint
from toolhub_agent.hints.sidecar import Sidecar
from toolhub_agent.hints.statistics import Tally

if TYPE_CHECKING:
    import httpx2

    from toolhub.config.llm import EngineName, HintSettings

# The latest programs and delays are enough for Continuum's T and eta.
_KEPT = 64
# More endpoints than this do not stand behind one agent; their names come from whoever signals.
_MOST_ENDPOINTS = 256


@dataclass(eq=False)
class Shared:
    """Settings, ways to reach servers, and all that is learned over conversations."""

    settings: HintSettings
    engine: EngineName
    http: Callable[[str], httpx2.AsyncClient]
    headers_of: Callable[[str], Mapping[str, str]]
    load_of: Callable[[str], int]
    durations: Durations
    sidecar: Sidecar | None = None
    tally: Tally = field(default_factory=Tally)
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    program_lengths: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT))
    queue_delays: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def endpoint(self, url: str) -> Endpoint | None:
        """None without an address, or beyond the most that are remembered."""
        if url and url not in self.endpoints and len(self.endpoints) < _MOST_ENDPOINTS:
            self.endpoints[url] = Endpoint(url, engine=self.engine, settings=self.settings)
        return self.endpoints.get(url)

    def retention(self, endpoint: Endpoint, prefix_tokens: int, tool: tuple[str, str] | None = None) -> float:
        """How long to keep a prefix, in seconds; tool: the one waited for, where it is known already."""
        longest = self.settings.max_pin_s
        if endpoint.adapter is not None and endpoint.adapter.pins_yield:
            return ttl.unhurried(self.durations.of_all(), margin=self.settings.margin_s, longest=longest)
        reload = endpoint.cost.seconds(prefix_tokens) - endpoint.cost.seconds(prefix_tokens, prefix_tokens)
        delay = fmean(self.queue_delays) if self.queue_delays else 0.0
        benefit = delay * ttl.memory(self.program_lengths) + reload
        own = self.durations.own(*tool) if tool else ()
        return ttl.retention(own, self.durations.of_all(), benefit, longest=longest)
