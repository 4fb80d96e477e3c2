"""What every adapter has: verbs that become HTTP requests of one engine. This one suits any OpenAI-compatible server.

Verbs are pure: they give back a `Command` that the hinter sends, within its budget, once. What an engine cannot do is
None. An adapter belongs to one endpoint and remembers what that endpoint can do and what it refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toolhub_agent.hints.signals import Fields, Prompt
from toolhub_agent.llm.transport import engine_root, header_value
from toolhub_agent.model import Json

if TYPE_CHECKING:
    import httpx2

WARM_PREFIX = "toolhub-warm-"
"""Request ids of prefill-aheads begin with this, so that a server's logs and accounting can tell them apart."""

# Fields that shape the answer, not the prompt; with one token to generate they are in the way or cost something.
_NOT_FOR_WARMS = frozenset(
    {"stream", "stream_options", "max_tokens", "max_completion_tokens", "n", "logprobs", "top_logprobs"}
    | {"min_tokens", "structured_outputs", "request_id", "rid", "best_of"}
)
_PIN_FIELDS = frozenset({"pin_ttl_s", "release_session"})


@dataclass(frozen=True, slots=True)
class Command:
    """One request to make. url: absolute. body: JSON; None for a request without one."""

    method: str
    url: str
    body: Json | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Adapter:
    """Any server that caches prefixes: prefill-ahead is all that can be asked of it."""

    name = "generic"
    pins_yield = False
    """Whether what it keeps is given up before another request waits for the memory."""

    def __init__(self, endpoint: str) -> None:
        """endpoint: its base address, with `/v1` where it has one."""
        self.endpoint = endpoint.rstrip("/")
        self.root = engine_root(endpoint)

    def __repr__(self) -> str:
        return f"<{self.name} at {self.endpoint}>"

    async def probe(self, http: httpx2.AsyncClient) -> None:
        """Ask the endpoint what it can do. Raises httpx2.HTTPError where it does not answer."""

    def turn_fields(self, session: str, *, ttl: float) -> Fields:
        """ttl: seconds for which the KV cache of that request should be kept; 0: no wish."""
        return Fields()

    def prefetch(self, session: str, prompt: Prompt, request_id: str, headers: Mapping[str, str]) -> Command:
        """A prefill-ahead of what the next request begins with. headers: those of the conversation's requests."""
        body = {name: value for name, value in prompt.body.items() if name not in _NOT_FOR_WARMS}
        if isinstance(extra := body.get("vllm_xargs"), Mapping):
            body["vllm_xargs"] = {name: value for name, value in extra.items() if name not in _PIN_FIELDS}
        body |= {"messages": list(prompt.messages), "max_tokens": 1, "stream": False}
        body |= self.warm_body(session, request_id)
        return Command(
            "POST", f"{self.endpoint}/chat/completions", body, {**headers, "X-Request-Id": request_id, **self.low()}
        )

    def warm_body(self, session: str, request_id: str) -> Json:
        """Fields of the engine's own for a prefill-ahead."""
        return {}

    def low(self) -> dict[str, str]:
        """Headers that ask for low priority."""
        return {}

    def abort(self, request_id: str) -> Command | None:
        """What must be said beside hanging up, so that the engine stops a prefill-ahead."""
        return None

    def release(self, session: str, prompt: Prompt | None, headers: Mapping[str, str]) -> Command | None:
        """No request of this conversation will follow."""
        return None

    def refused(self, status: int, text: str) -> bool:
        """Remember what a 4xx was about; True if the command, made again, is without it."""
        return False

    async def tokens(self, http: httpx2.AsyncClient, prompt: Prompt) -> list[int] | None:
        """The prompt as this server renders it, without the generation prompt; None if it cannot be asked."""
        return None


async def get_json(http: httpx2.AsyncClient, url: str) -> Json:
    """The JSON object of a page; {} if there is no such page or it is something else."""
    answer = await http.get(url)
    return _object(answer) if answer.status_code == 200 else {}


async def post_json(http: httpx2.AsyncClient, url: str, body: Json) -> Json:
    """The same for a question with a body."""
    answer = await http.post(url, json=body)
    return _object(answer) if answer.status_code == 200 else {}


async def tokens_of_chat(http: httpx2.AsyncClient, root: str, prompt: Prompt) -> list[int] | None:
    """vLLM's `/tokenize` with messages, which others have copied."""
    asked: Json = {"messages": list(prompt.messages), "add_generation_prompt": False}
    asked |= {name: prompt.body[name] for name in ("model", "tools", "chat_template_kwargs") if name in prompt.body}
    return token_list((await post_json(http, f"{root}/tokenize", asked)).get("tokens"))


def token_list(found: Any) -> list[int] | None:
    return found if isinstance(found, list) and found and all(isinstance(token, int) for token in found) else None


def safe_name(session: str) -> str:
    """A session's name as bodies and headers of every engine take it."""
    return header_value(session)


def _object(answer: httpx2.Response) -> Json:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
