"""One adapter per inference engine: what it can be asked, and the HTTP request for it.

The methods are pure: each returns a `Command`, which the hint client sends once, within a timeout. A method returns
None for what the engine cannot do. An adapter belongs to one endpoint. It remembers what that endpoint can do and what
it refused. To add an engine: write an adapter, add it to `adapter_for`, and teach `identify` to recognise it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from toolhub_agent.kv_hints.signals import Prompt
from toolhub_agent.llm.transport import engine_root, header_value
from toolhub_agent.types import EngineFields, Json

if TYPE_CHECKING:
    import httpx2

    from toolhub.config.llm import EngineName


# --- Any server that caches prefixes ----------------------------------------------------------------------------------


PREFETCH_ID_PREFIX = "toolhub-prefetch-"
"""Request ids of prefetches begin with this, so that a server's logs and accounting can tell them apart."""

# Fields that shape the answer, not the prompt. A prefetch generates one token, so they are useless or cost time there.
_NOT_FOR_PREFETCH = frozenset(
    {"stream", "stream_options", "max_tokens", "max_completion_tokens", "n", "logprobs", "top_logprobs"}
    | {"min_tokens", "structured_outputs", "request_id", "rid", "best_of"}
)
_PIN_FIELDS = frozenset({"pin_ttl_s", "release_session"})


@dataclass(frozen=True, slots=True)
class Command:
    """One HTTP request. url: absolute. body: JSON; None for a request without a body."""

    method: str
    url: str
    body: Json | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class EngineAdapter:
    """Any OpenAI-compatible server that caches prefixes. It can prefetch and nothing else."""

    name = "generic"
    pins_yield = False
    """Whether the engine gives up a pinned prefix before another request has to wait for the memory."""

    def __init__(self, endpoint: str) -> None:
        """endpoint: the base address, with `/v1` if it has one."""
        self.endpoint = endpoint.rstrip("/")
        self.root = engine_root(endpoint)

    def __repr__(self) -> str:
        return f"<{self.name} at {self.endpoint}>"

    async def probe(self, http: httpx2.AsyncClient) -> None:
        """Ask the endpoint what it can do. Raises httpx2.HTTPError if it does not answer."""

    def engine_fields(self, session: str, *, ttl: float) -> EngineFields:
        """Return fields for an agent's own request.

        ttl: seconds for which the engine should keep the request's KV cache; 0: do not ask for it.
        """
        return EngineFields()

    def prefetch(self, session: str, prompt: Prompt, request_id: str, headers: Mapping[str, str]) -> Command:
        """Prefetch the beginning of the next request. headers: those of the conversation's requests."""
        body = {name: value for name, value in prompt.body.items() if name not in _NOT_FOR_PREFETCH}
        if isinstance(extra := body.get("vllm_xargs"), Mapping):
            body["vllm_xargs"] = {name: value for name, value in extra.items() if name not in _PIN_FIELDS}
        body |= {"messages": list(prompt.messages), "max_tokens": 1, "stream": False}
        body |= self.prefetch_body(session, request_id)
        return Command(
            "POST", f"{self.endpoint}/chat/completions", body, {**headers, "X-Request-Id": request_id, **self.low()}
        )

    def prefetch_body(self, session: str, request_id: str) -> Json:
        """Fields that only this engine knows, for a prefetch."""
        return {}

    def low(self) -> dict[str, str]:
        """Headers that ask for low priority."""
        return {}

    def abort(self, request_id: str) -> Command | None:
        """The request that stops a prefetch, for an engine that does not notice a closed connection; else None."""
        return None

    def release(self, session: str, prompt: Prompt | None, headers: Mapping[str, str]) -> Command | None:
        """Tell the engine that this conversation sends no more requests."""
        return None

    def refused(self, status: int, text: str) -> bool:
        """Remember what the endpoint refused with a 4xx. True if the command, made again, leaves that out."""
        return False

    async def tokens(self, http: httpx2.AsyncClient, prompt: Prompt) -> list[int] | None:
        """The prompt's tokens as this server renders them, without the generation prompt; None if it cannot tell."""
        return None


async def get_json(http: httpx2.AsyncClient, url: str) -> Json:
    """The JSON object at a URL; {} if there is none or it is not an object."""
    answer = await http.get(url)
    return _json_object(answer) if answer.status_code == 200 else {}


async def post_json(http: httpx2.AsyncClient, url: str, body: Json) -> Json:
    """The JSON object that a POST returns; {} if there is none or it is not an object."""
    answer = await http.post(url, json=body)
    return _json_object(answer) if answer.status_code == 200 else {}


async def tokens_of_chat(http: httpx2.AsyncClient, root: str, prompt: Prompt) -> list[int] | None:
    """vLLM's `/tokenize` with messages. Other engines have copied it."""
    asked: Json = {"messages": list(prompt.messages), "add_generation_prompt": False}
    asked |= {name: prompt.body[name] for name in ("model", "tools", "chat_template_kwargs") if name in prompt.body}
    return token_list((await post_json(http, f"{root}/tokenize", asked)).get("tokens"))


def token_list(found: Any) -> list[int] | None:
    return found if isinstance(found, list) and found and all(isinstance(token, int) for token in found) else None


def safe_session_id(session: str) -> str:
    """A session's name that every engine accepts in bodies and headers."""
    return header_value(session)


def _json_object(answer: httpx2.Response) -> Json:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# --- vLLM -------------------------------------------------------------------------------------------------------------
# Stock releases cannot pin. toolhub's scheduler plugin adds that (`vllm_xargs.pin_ttl_s`).

# The first release that accepts a priority without priority scheduling. Older ones refuse the request.
_VLLM_TAKES_PRIORITY = (0, 32)
# A lower number is served sooner. An agent's own requests have 0.
_VLLM_LOW_PRIORITY = 100


class VllmAdapter(EngineAdapter):
    name = "vllm"

    def __init__(self, endpoint: str, *, pin: bool = False) -> None:
        """pin: the server runs toolhub's scheduler plugin."""
        super().__init__(endpoint)
        self._pin = self.pins_yield = pin
        self._takes_priority = False
        self.version: tuple[int, ...] = ()

    async def probe(self, http: httpx2.AsyncClient) -> None:
        self.version = version_of((await get_json(http, f"{self.root}/version")).get("version"))
        self._takes_priority = self.version >= _VLLM_TAKES_PRIORITY

    def engine_fields(self, session: str, *, ttl: float) -> EngineFields:
        if not self._pin or ttl <= 0:
            return EngineFields()
        return EngineFields(body={"vllm_xargs": {"pin_ttl_s": round(ttl, 3), "session_id": safe_session_id(session)}})

    def prefetch_body(self, session: str, request_id: str) -> Json:
        body: Json = {"add_generation_prompt": False, "request_id": request_id}
        return body | {"priority": _VLLM_LOW_PRIORITY} if self._takes_priority else body

    def release(self, session: str, prompt: Prompt | None, headers: Mapping[str, str]) -> Command | None:
        if not self._pin or prompt is None or "model" not in prompt.body:
            return None
        body = {
            "model": prompt.body["model"],
            "messages": [{"role": "user", "content": "."}],
            "max_tokens": 1,
            "stream": False,
            "vllm_xargs": {"release_session": safe_session_id(session)},
        }
        return Command("POST", f"{self.endpoint}/chat/completions", body, headers)

    def refused(self, status: int, text: str) -> bool:
        had, self._takes_priority = self._takes_priority, self._takes_priority and "priority" not in text.lower()
        return had and not self._takes_priority

    async def tokens(self, http: httpx2.AsyncClient, prompt: Prompt) -> list[int] | None:
        return await tokens_of_chat(http, self.root, prompt)


def version_of(text: object) -> tuple[int, ...]:
    """(0, 32, 0) for "0.32.0+cpu"; () for anything else."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", text) if isinstance(text, str) else None
    return tuple(int(part) for part in found[1].split(".")) if found else ()


# --- SGLang -----------------------------------------------------------------------------------------------------------
# A server with `--enable-session-radix-cache` uses `session_id` to protect a live conversation's cache.
#
# Priorities follow the server's arguments. SGLang schedules a request without a priority last. So a prefetch has none,
# unless the server gives such requests a default.

_SGLANG_LOW_PRIORITY = 100
SGLANG_INFO_PAGES = ("/server_info", "/get_server_info")
"""The pages with the server's arguments: the current one and its older name."""
_SGLANG_KEYS = ("radix_eviction_policy", "schedule_policy", "disable_radix_cache")


class SGLangAdapter(EngineAdapter):
    name = "sglang"

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self._arguments: Mapping[str, Any] = {}

    async def probe(self, http: httpx2.AsyncClient) -> None:
        self._arguments = await sglang_arguments(http, self.root)

    @property
    def _protects_sessions(self) -> bool:
        return self._arguments.get("enable_session_radix_cache") is True

    @property
    def _sooner(self) -> int:
        """The direction of priorities that are served first, +1 or -1; 0 if the server has no priorities."""
        if self._arguments.get("enable_priority_scheduling") is not True:
            return 0
        return -1 if self._arguments.get("schedule_low_priority_values_first") is True else 1

    @property
    def _evicts_by_priority(self) -> bool:
        return self._sooner != 0 and self._arguments.get("radix_eviction_policy") == "priority"

    def engine_fields(self, session: str, *, ttl: float) -> EngineFields:
        body: Json = {"session_id": safe_session_id(session)} if self._protects_sessions else {}
        # A higher priority keeps this conversation's cache longer than that of requests without a priority.
        return EngineFields(body=body | {"priority": self._sooner} if self._evicts_by_priority else body)

    def prefetch_body(self, session: str, request_id: str) -> Json:
        body: Json = {"rid": request_id}
        if self._protects_sessions:
            body["session_id"] = safe_session_id(session)
        default = self._arguments.get("default_priority_value")
        if self._evicts_by_priority:
            # With a low priority the restored prefix would be evicted first.
            body["priority"] = self._sooner
        elif self._sooner and isinstance(default, int):
            body["priority"] = default - self._sooner * _SGLANG_LOW_PRIORITY
        return body

    def abort(self, request_id: str) -> Command | None:
        # SGLang looks for closed connections only every few seconds.
        return Command("POST", f"{self.root}/abort_request", {"rid": request_id})

    def release(self, session: str, prompt: Prompt | None, headers: Mapping[str, str]) -> Command | None:
        if not self._protects_sessions:
            return None
        return Command("POST", f"{self.root}/close_session", {"session_id": safe_session_id(session)})

    async def tokens(self, http: httpx2.AsyncClient, prompt: Prompt) -> list[int] | None:
        return await tokens_of_chat(http, self.root, prompt)


async def sglang_arguments(http: httpx2.AsyncClient, root: str) -> Mapping[str, Any]:
    """SGLang's start arguments; {} for any other server."""
    for page in SGLANG_INFO_PAGES:
        found = await get_json(http, root + page)
        inner = found.get("server_args")
        for candidate in (found, inner if isinstance(inner, dict) else {}):
            if any(sign in candidate for sign in _SGLANG_KEYS):
                return candidate
    return {}


# --- NVIDIA Dynamo ----------------------------------------------------------------------------------------------------
# Session and priority go into headers: Dynamo's parser refuses bodies with fields that it does not know.
#
# `nvext` is sent with prefetches only, never with a conversation's own request. After a refusal it is not sent again.
# `speculative_prefill` is not used: it renders the turn without its tools and so computes another prompt.

# A higher number is more important. An agent's own requests have none, which counts as 0.
_DYNAMO_LOW_PRIORITY = -10


class DynamoAdapter(EngineAdapter):
    name = "dynamo"

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self._takes_nvext = True

    def engine_fields(self, session: str, *, ttl: float) -> EngineFields:
        return EngineFields(headers={"X-Dynamo-Session-ID": safe_session_id(session)})

    def prefetch_body(self, session: str, request_id: str) -> Json:
        return {"nvext": {"agent_hints": {"priority": _DYNAMO_LOW_PRIORITY}}} if self._takes_nvext else {}

    def low(self) -> dict[str, str]:
        return {"x-dynamo-request-priority": str(_DYNAMO_LOW_PRIORITY)}

    def release(self, session: str, prompt: Prompt | None, headers: Mapping[str, str]) -> Command | None:
        """The end of a session needs a request of its own, because the conversation sends no more requests."""
        if prompt is None or "model" not in prompt.body:
            return None
        final = {
            **headers,
            **self.low(),
            "X-Dynamo-Session-ID": safe_session_id(session),
            "X-Dynamo-Session-Final": "true",
        }
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


# --- llama.cpp --------------------------------------------------------------------------------------------------------
# The server picks the slot with the longest common prefix itself, so a request names no slot.


class LlamaCppAdapter(EngineAdapter):
    name = "llamacpp"

    def prefetch_body(self, session: str, request_id: str) -> Json:
        return {"add_generation_prompt": False, "cache_prompt": True}

    async def tokens(self, http: httpx2.AsyncClient, prompt: Prompt) -> list[int] | None:
        asked: Json = {"messages": list(prompt.messages), "add_generation_prompt": False}
        asked |= {name: prompt.body[name] for name in ("tools", "chat_template_kwargs") if name in prompt.body}
        text = (await post_json(http, f"{self.root}/apply-template", asked)).get("prompt")
        if not isinstance(text, str):
            return None
        question = {"content": text, "add_special": True, "parse_special": True}
        return token_list((await post_json(http, f"{self.root}/tokenize", question)).get("tokens"))


# --- The registry -----------------------------------------------------------------------------------------------------
# One adapter per engine, and how to detect the engine.


def adapter_for(engine: EngineName, endpoint: str, *, pin: bool = False) -> EngineAdapter:
    """Return the adapter of an engine. `auto` means any server here: detect the engine first.

    pin: see `HintSettings.use_pin_scheduler`.
    """
    match engine:
        case "vllm":
            return VllmAdapter(endpoint, pin=pin)
        case "sglang":
            return SGLangAdapter(endpoint)
        case "dynamo":
            return DynamoAdapter(endpoint)
        case "llamacpp":
            return LlamaCppAdapter(endpoint)
        case _:
            return EngineAdapter(endpoint)


async def identify(http: httpx2.AsyncClient, endpoint: str) -> EngineName:
    """Detect a server's engine; `generic` if it is none of the known ones.

    Raises httpx2.HTTPError if it does not answer.
    """
    root = engine_root(endpoint)
    if version_of((await get_json(http, f"{root}/version")).get("version")):
        return "vllm"
    if await sglang_arguments(http, root):
        return "sglang"
    if "default_generation_settings" in await get_json(http, f"{root}/props"):
        return "llamacpp"
    if isinstance((await get_json(http, f"{root}/health")).get("instances"), list):
        return "dynamo"
    return "generic"


# --- LMCache ----------------------------------------------------------------------------------------------------------
# LMCache's coordinator beside a vLLM server keeps and loads prefixes in memory below the accelerator's. It names
# prefixes by their token ids, so the engine must be able to return the tokens of a conversation. It counts pins: each
# pin must be released exactly once.


@dataclass(frozen=True, slots=True)
class LMCacheNode:
    """The LMCache server beside an engine. world_size: ranks of the engine, as the server registered."""

    instance_id: str
    world_size: int


class LMCacheCommands:
    """The requests to a coordinator."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def __repr__(self) -> str:
        return f"<lmcache at {self.url}>"

    async def node_of(self, http: httpx2.AsyncClient, endpoint: str) -> LMCacheNode | None:
        """The node that serves an engine: the only node, or the one on the engine's host; None if that is unclear."""
        if (await http.get(f"{self.url}/healthz")).status_code != 200:
            return None
        found = (await get_json(http, f"{self.url}/instances")).get("instances")
        nodes = [node for node in found if isinstance(node, dict)] if isinstance(found, list) else []
        if len(nodes) > 1:
            nodes = [node for node in nodes if node.get("ip") == urlsplit(endpoint).hostname]
        return _parse_node(nodes[0]) if len(nodes) == 1 else None

    def prefetch(self, node: LMCacheNode, model: str, tokens: list[int], salt: str) -> Command:
        body = {"instance_id": node.instance_id, **_token_fields(node, model, tokens, salt)}
        return Command("POST", f"{self.url}/cache/prefetches", body)

    def pin(self, node: LMCacheNode, model: str, tokens: list[int], salt: str) -> Command:
        return Command("POST", f"{self.url}/cache/pins", _token_fields(node, model, tokens, salt))

    def unpin(self, pinned: Command) -> Command:
        """The command that undoes a `pin`."""
        return Command("DELETE", pinned.url, pinned.body)


def _token_fields(node: LMCacheNode, model: str, tokens: list[int], salt: str) -> Json:
    return {"model_name": model, "world_size": node.world_size, "token_ids": tokens, "cache_salt": salt}


def _parse_node(found: Json) -> LMCacheNode | None:
    name, metadata = found.get("instance_id"), found.get("metadata")
    size: Any = metadata.get("world_size", 1) if isinstance(metadata, dict) else 1
    if not isinstance(name, str) or not str(size).isdigit():
        return None
    return LMCacheNode(name, max(1, int(size)))


class LMCacheClient:
    """A coordinator and the HTTP clients for it and the engines. Raises httpx2.HTTPError if one does not answer."""

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        """http: for the coordinator alone; it must not carry the keys of model servers."""
        self._lmcache = LMCacheCommands(url)
        self._http = http
        self._nodes: dict[str, LMCacheNode] = {}

    async def prefetch(self, engine: httpx2.AsyncClient, adapter: EngineAdapter, prompt: Prompt) -> bool:
        """Load the prompt's chunks from the second tier; False if there is nothing to load or no node is known."""
        if (found := await self._content(engine, adapter, prompt)) is None:
            return False
        node, model, tokens, salt = found
        answer = await self._send(self._lmcache.prefetch(node, model, tokens, salt))
        return bool(answer.status_code < 300 and answer.json().get("status") == "submitted")

    async def pin(self, engine: httpx2.AsyncClient, adapter: EngineAdapter, prompt: Prompt) -> Command | None:
        """Pin the prompt's chunks; return the command that unpins them."""
        if (found := await self._content(engine, adapter, prompt)) is None:
            return None
        command = self._lmcache.pin(*found)
        answer = await self._send(command)
        return self._lmcache.unpin(command) if answer.status_code < 300 else None

    async def unpin(self, command: Command) -> None:
        await self._send(command)

    async def _content(
        self, engine: httpx2.AsyncClient, adapter: EngineAdapter, prompt: Prompt
    ) -> tuple[LMCacheNode, str, list[int], str] | None:
        if (node := await self._node(adapter.endpoint)) is None:
            return None
        tokens = await adapter.tokens(engine, prompt)
        model = prompt.body.get("model")
        if tokens is None or not isinstance(model, str):
            return None
        salt = prompt.body.get("cache_salt")
        return node, model, tokens, salt if isinstance(salt, str) else ""

    async def _node(self, endpoint: str) -> LMCacheNode | None:
        if endpoint not in self._nodes:
            node = await self._lmcache.node_of(self._http, endpoint)
            if node is None:
                return None
            self._nodes[endpoint] = node
        return self._nodes[endpoint]

    async def _send(self, command: Command) -> httpx2.Response:
        return await self._http.request(command.method, command.url, json=command.body)
