"""NVIDIA Dynamo. Identity and priority go into headers: its parser refuses bodies with fields it does not know.

`nvext` is tried with a prefill-ahead only, never with a conversation's own request, and no more once it was refused.
`speculative_prefill` is not used: it renders the turn without its tools and so warms another prompt.
"""

from __future__ import annotations

from collections.abc import Mapping

from toolhub_agent.hints.adapters.base import Adapter, Command, safe_name
from toolhub_agent.hints.signals import Fields, Prompt
from toolhub_agent.model import Json

# Higher is more important; an agent's own requests have none, which counts as 0.
_LOW = -10


class Dynamo(Adapter):
    name = "dynamo"

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self._takes_nvext = True

    def turn_fields(self, session: str, *, ttl: float) -> Fields:
        return Fields(headers={"X-Dynamo-Session-ID": safe_name(session)})

    def warm_body(self, session: str, request_id: str) -> Json:
        return {"nvext": {"agent_hints": {"priority": _LOW}}} if self._takes_nvext else {}

    def low(self) -> dict[str, str]:
        return {"x-dynamo-request-priority": str(_LOW)}

    def release(self, session: str, prompt: Prompt | None, headers: Mapping[str, str]) -> Command | None:
        """The end of a session is told with a request; the last one of the conversation has gone already."""
        if prompt is None or "model" not in prompt.body:
            return None
        final = {**headers, **self.low(), "X-Dynamo-Session-ID": safe_name(session), "X-Dynamo-Session-Final": "true"}
        body = {
            "model": prompt.body["model"],
            "messages": [{"role": "user", "content": "."}],
            "max_tokens": 1,
            "stream": False,
        }
        return Command("POST", f"{self.endpoint}/chat/completions", body, final)

    def refused(self, status: int, text: str) -> bool:
        had, self._takes_nvext = self._takes_nvext, self._takes_nvext and "nvext" not in text.lower()
        return had and not self._takes_nvext
