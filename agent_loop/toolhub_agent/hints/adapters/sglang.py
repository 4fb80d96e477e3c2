"""SGLang. Where it runs with `--enable-session-radix-cache`, a `session_id` protects a live conversation's cache.

Priorities follow the server's own arguments. A request without one is the last to be scheduled, so that a
prefill-ahead goes without, unless the server gives such requests a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolhub_agent.hints.adapters.base import Adapter, Command, get_json, safe_name, tokens_of_chat
from toolhub_agent.hints.signals import Fields, Prompt
from toolhub_agent.model import Json

if TYPE_CHECKING:
    import httpx2

_STEP = 100
PAGES = ("/server_info", "/get_server_info")
"""The server's arguments: today's page and its older name."""
_SIGNS = ("radix_eviction_policy", "schedule_policy", "disable_radix_cache")


class SGLang(Adapter):
    name = "sglang"

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self._arguments: Mapping[str, Any] = {}

    async def probe(self, http: httpx2.AsyncClient) -> None:
        self._arguments = await arguments(http, self.root)

    @property
    def _protects_sessions(self) -> bool:
        return self._arguments.get("enable_session_radix_cache") is True

    @property
    def _sooner(self) -> int:
        """+1 or -1: the direction of priorities that are served first; 0 if there are none."""
        if self._arguments.get("enable_priority_scheduling") is not True:
            return 0
        return -1 if self._arguments.get("schedule_low_priority_values_first") is True else 1

    @property
    def _evicts_by_priority(self) -> bool:
        return self._sooner != 0 and self._arguments.get("radix_eviction_policy") == "priority"

    def turn_fields(self, session: str, *, ttl: float) -> Fields:
        body: Json = {"session_id": safe_name(session)} if self._protects_sessions else {}
        # A conversation that goes on is worth more than one that does not say so.
        return Fields(body=body | {"priority": self._sooner} if self._evicts_by_priority else body)

    def warm_body(self, session: str, request_id: str) -> Json:
        body: Json = {"rid": request_id}
        if self._protects_sessions:
            body["session_id"] = safe_name(session)
        default = self._arguments.get("default_priority_value")
        if self._evicts_by_priority:
            # Low priority would let what was just restored be evicted first.
            body["priority"] = self._sooner
        elif self._sooner and isinstance(default, int):
            body["priority"] = default - self._sooner * _STEP
        return body

    def abort(self, request_id: str) -> Command | None:
        # It looks for hung-up clients only every few seconds.
        return Command("POST", f"{self.root}/abort_request", {"rid": request_id})

    def release(self, session: str, prompt: Prompt | None, headers: Mapping[str, str]) -> Command | None:
        if not self._protects_sessions:
            return None
        return Command("POST", f"{self.root}/close_session", {"session_id": safe_name(session)})

    async def tokens(self, http: httpx2.AsyncClient, prompt: Prompt) -> list[int] | None:
        return await tokens_of_chat(http, self.root, prompt)


async def arguments(http: httpx2.AsyncClient, root: str) -> Mapping[str, Any]:
    """SGLang's start arguments as it tells them; {} of any other server."""
    for page in PAGES:
        found = await get_json(http, root + page)
        inner = found.get("server_args")
        for candidate in (found, inner if isinstance(inner, dict) else {}):
            if any(sign in candidate for sign in _SIGNS):
                return candidate
    return {}
