"""vLLM. Stock releases keep nothing on request; with toolhub's scheduler plugin they do (`vllm_xargs.pin_ttl_s`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from toolhub_agent.hints.adapters.base import Adapter, Command, get_json, safe_name, tokens_of_chat
from toolhub_agent.hints.signals import Fields, Prompt
from toolhub_agent.model import Json

if TYPE_CHECKING:
    import httpx2

# The first that takes a priority without priority scheduling, too; older ones refuse the request.
_PRIORITY_ACCEPTED = (0, 32)
# Lower is sooner; an agent's own requests have 0.
_LAST = 100


class Vllm(Adapter):
    name = "vllm"

    def __init__(self, endpoint: str, *, pin: bool = False) -> None:
        """pin: the server runs toolhub's scheduler, which honours pins."""
        super().__init__(endpoint)
        self._pin = self.pins_yield = pin
        self._takes_priority = False
        self.version: tuple[int, ...] = ()

    async def probe(self, http: httpx2.AsyncClient) -> None:
        self.version = version_of((await get_json(http, f"{self.root}/version")).get("version"))
        self._takes_priority = self.version >= _PRIORITY_ACCEPTED

    def turn_fields(self, session: str, *, ttl: float) -> Fields:
        if not self._pin or ttl <= 0:
            return Fields()
        return Fields(body={"vllm_xargs": {"pin_ttl_s": round(ttl, 3), "session_id": safe_name(session)}})

    def warm_body(self, session: str, request_id: str) -> Json:
        body: Json = {"add_generation_prompt": False, "request_id": request_id}
        return body | {"priority": _LAST} if self._takes_priority else body

    def release(self, session: str, prompt: Prompt | None, headers: Mapping[str, str]) -> Command | None:
        if not self._pin or prompt is None or "model" not in prompt.body:
            return None
        body = {
            "model": prompt.body["model"],
            "messages": [{"role": "user", "content": "."}],
            "max_tokens": 1,
            "stream": False,
            "vllm_xargs": {"release_session": safe_name(session)},
        }
        return Command("POST", f"{self.endpoint}/chat/completions", body, headers)

    def refused(self, status: int, text: str) -> bool:
        had, self._takes_priority = self._takes_priority, self._takes_priority and "priority" not in text.lower()
        return had and not self._takes_priority

    async def tokens(self, http: httpx2.AsyncClient, prompt: Prompt) -> list[int] | None:
        return await tokens_of_chat(http, self.root, prompt)


def version_of(text: object) -> tuple[int, ...]:
    """(0, 32, 0) of "0.32.0+cpu"; () of anything else."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", text) if isinstance(text, str) else None
    return tuple(int(part) for part in found[1].split(".")) if found else ()
