"""llama.cpp's server. It picks the slot with the longest common prefix itself, so no slot is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolhub_agent.hints.adapters.base import Adapter, post_json, token_list
from toolhub_agent.hints.signals import Prompt
from toolhub_agent.model import Json

if TYPE_CHECKING:
    import httpx2


class LlamaCpp(Adapter):
    name = "llamacpp"

    def warm_body(self, session: str, request_id: str) -> Json:
        return {"add_generation_prompt": False, "cache_prompt": True}

    async def tokens(self, http: httpx2.AsyncClient, prompt: Prompt) -> list[int] | None:
        asked: Json = {"messages": list(prompt.messages), "add_generation_prompt": False}
        asked |= {name: prompt.body[name] for name in ("tools", "chat_template_kwargs") if name in prompt.body}
        text = (await post_json(http, f"{self.root}/apply-template", asked)).get("prompt")
        if not isinstance(text, str):
            return None
        question = {"content": text, "add_special": True, "parse_special": True}
        return token_list((await post_json(http, f"{self.root}/tokenize", question)).get("tokens"))
