"""Sends requests to a model server for the checks: detects the server, and times requests of one conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

import anyio
import httpx2

from toolhub.config.llm import LlmSettings
from toolhub_agent.errors import AnswerUnreadable
from toolhub_agent.kv_hints.engines import (
    PREFETCH_ID_PREFIX,
    SGLANG_INFO_PAGES,
    EngineAdapter,
    adapter_for,
    get_json,
    identify,
)
from toolhub_agent.kv_hints.signals import Prompt
from toolhub_agent.llm.accumulator import AnswerAccumulator, usage_of
from toolhub_agent.llm.concurrency import MAX_METRICS_BYTES, SCRAPE_TIMEOUT_S
from toolhub_agent.llm.endpoint_pool import open_endpoint_pool
from toolhub_agent.llm.errors import AttemptFailed, sanitize
from toolhub_agent.llm.transport import (
    HTTP_ERRORS,
    BodyTooLarge,
    ChatTransport,
    ChunkStream,
    read_body,
    session_headers,
)
from toolhub_agent.types import Json, Message, Usage

CheckStatus = Literal["ok", "weaker", "note"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """status: `weaker` costs an agent time or tokens; `note` is information. advice: what to do about it."""

    check: str
    status: CheckStatus
    detail: str
    advice: str = ""


# --- Requests ---------------------------------------------------------------------------------------------------------
# Timed requests of one conversation, each with a timeout.

# The largest prefill of a check takes seconds on one core. A slower server is too busy to be checked.
REQUEST_TIMEOUT_S = 60.0
# The limit of one answer: a check asks for a few tokens.
MAX_STREAM_BYTES = 4 << 20


class RequestFailed(Exception):
    """A request failed. status: of a refusal; None if there was no proper answer."""

    def __init__(self, what: str, status: int | None = None) -> None:
        super().__init__(what)
        self.status = status


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """ttft: seconds to the first piece, or to the whole answer if it is not streamed."""

    usage: Usage
    ttft: float
    message: Json = field(default_factory=dict)


class ModelServer:
    """One endpoint. adapter: for its engine."""

    def __init__(self, transport: ChatTransport, *, model: str, adapter: EngineAdapter) -> None:
        self.http = transport.http
        self.url = transport.endpoint
        self.model = model
        self.adapter = adapter
        self.session = f"toolhub-doctor-{uuid4().hex[:12]}"
        self._transport = transport

    async def stream(self, messages: Sequence[Message], **body: Any) -> TimedAnswer:
        """One streamed token. Raises RequestFailed."""
        asked = {**self._body(messages, body), "stream": True, "stream_options": {"include_usage": True}}
        with self._bounded():
            began = anyio.current_time()
            chunks = await self._transport.stream(asked, self.headers())
            try:
                return await _read_stream(chunks, began)
            finally:
                await chunks.aclose()

    async def whole(self, messages: Sequence[Message], **body: Any) -> TimedAnswer:
        """Send a request without streaming; `max_tokens` and other fields as in `body`. Raises RequestFailed."""
        with self._bounded():
            began = anyio.current_time()
            answer = await self._transport.ask(self._body(messages, body), self.headers())
            return _read_whole(answer, anyio.current_time() - began)

    async def answer(self, body: Mapping[str, Any], *, session: str, timeout: float) -> AnswerAccumulator:
        """Stream a whole answer, as an agent does. Raises RequestFailed."""
        asked = {"model": self.model, "temperature": 0, **body}
        answer = AnswerAccumulator()
        with self._bounded(timeout):
            chunks = await self._transport.stream(
                asked | {"stream": True, "stream_options": {"include_usage": True}}, session_headers(session)
            )
            try:
                while isinstance(chunk := await chunks.next(), dict):
                    answer.feed(chunk)
                answer.finish()
            finally:
                await chunks.aclose()
        return answer

    async def metrics_page(self) -> str:
        """The content of `/metrics`; empty if there is none. Raises RequestFailed."""
        try:
            with anyio.fail_after(5 * SCRAPE_TIMEOUT_S):
                async with self.http.stream("GET", f"{self.adapter.root}/metrics") as response:
                    content = await read_body(response, MAX_METRICS_BYTES)
                    return content.decode(errors="replace") if response.status_code == 200 else ""
        except BodyTooLarge:
            return ""
        except (*HTTP_ERRORS, TimeoutError) as exc:
            raise RequestFailed(f"/metrics did not answer ({type(exc).__name__})") from exc

    async def prefetch(self, prompt: Prompt) -> None:
        """Send a prefetch as the hints do. Raises RequestFailed."""
        request_id = f"{PREFETCH_ID_PREFIX}{uuid4().hex}"
        with self._bounded():
            for is_last in (False, True):
                command = self.adapter.prefetch(self.session, prompt, request_id, self.headers())
                answer = await self.http.request(
                    command.method, command.url, json=command.body, headers=dict(command.headers)
                )
                if answer.status_code == 200:
                    return
                if is_last or not self.adapter.refused(answer.status_code, answer.text):
                    raise await self._transport.refusal(answer)

    def headers(self) -> dict[str, str]:
        return session_headers(self.session)

    def prompt(self, messages: Sequence[Message], **body: Any) -> Prompt:
        return Prompt(tuple(messages), {"model": self.model, **body}, self.url)

    def _body(self, messages: Sequence[Message], body: Mapping[str, Any]) -> Json:
        return {"model": self.model, "messages": list(messages), "max_tokens": 1, "temperature": 0, **body}

    @contextmanager
    def _bounded(self, timeout: float | None = None) -> Iterator[None]:
        limit = REQUEST_TIMEOUT_S if timeout is None else timeout
        try:
            with anyio.fail_after(limit):
                yield
        except TimeoutError as exc:
            raise RequestFailed(f"no answer within {limit:.0f} s") from exc
        except AnswerUnreadable as exc:
            raise RequestFailed(str(exc)) from exc
        except AttemptFailed as exc:
            raise RequestFailed(f"HTTP {exc}" if exc.status is not None else str(exc), exc.status) from exc
        except HTTP_ERRORS as exc:
            raise RequestFailed(sanitize(f"{type(exc).__name__}: {exc}", self._transport.secrets)) from exc


async def _read_stream(chunks: ChunkStream, began: float) -> TimedAnswer:
    usage, ttft = Usage(), None
    while isinstance(chunk := await chunks.next(), dict):
        if chunks.bytes_read > MAX_STREAM_BYTES:
            raise RequestFailed("the answer does not end")
        if ttft is None and any(_has_begun(choice) for choice in chunk.get("choices") or ()):
            ttft = anyio.current_time() - began
        if isinstance(found := chunk.get("usage"), dict):
            usage = usage_of(found, chunk)
    if ttft is None:
        raise RequestFailed("the stream contained no answer")
    return TimedAnswer(usage, ttft)


def _has_begun(choice: Any) -> bool:
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta") or {}
    said = any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls"))
    return said or choice.get("finish_reason") is not None


def _read_whole(answer: Any, seconds: float) -> TimedAnswer:
    try:
        message = answer["choices"][0]["message"]
    except (LookupError, TypeError):
        raise RequestFailed("the answer is not a chat completion") from None
    usage = answer.get("usage")
    return TimedAnswer(usage_of(usage, answer) if isinstance(usage, dict) else Usage(), seconds, message)


# --- Which server it is -----------------------------------------------------------------------------------------------
# Detects the server: its models, its engine and version, its context length.

# The timeout of a page that costs the server nothing.
PAGE_TIMEOUT_S = 10.0
_ENGINE_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "dynamo": "Dynamo", "llamacpp": "llama.cpp"}


@dataclass(frozen=True)
class ServerIdentity:
    """context_tokens: None if the server does not report it."""

    model: str
    models: tuple[str, ...]
    adapter: EngineAdapter
    version: str = ""
    context_tokens: int | None = None


async def read_identity(http: httpx2.AsyncClient, url: str, settings: LlmSettings) -> ServerIdentity:
    """Detect the server. Raises RequestFailed if nothing answers, or nothing that serves models."""
    try:
        with anyio.fail_after(settings.connect_timeout_s + 4 * PAGE_TIMEOUT_S):
            entries = await _served_models(http, url)
            model, chosen = _choose(entries, settings.model)
            engine = settings.engine if settings.engine != "auto" else await identify(http, url)
            adapter = adapter_for(engine, url, pin=settings.hints.use_pin_scheduler)
            await adapter.probe(http)
            version, context = await _details(http, adapter, chosen)
    except TimeoutError as exc:
        raise RequestFailed("no answer in time") from exc
    except HTTP_ERRORS as exc:
        raise RequestFailed(sanitize(f"{type(exc).__name__}: {exc}".rstrip(": "), _secrets(settings))) from exc
    names = tuple(str(entry["id"]) for entry in entries)
    return ServerIdentity(model, names, adapter, version, context)


@asynccontextmanager
async def open_model_server(settings: LlmSettings) -> AsyncIterator[ModelServer]:
    """The one endpoint of the settings, once it has answered. Raises RequestFailed, with its address."""
    (url,) = settings.endpoints
    async with open_endpoint_pool(settings) as pool:
        transport = pool.transport(url)
        try:
            identity = await read_identity(transport.http, url, settings)
        except RequestFailed as exc:
            raise RequestFailed(f"{url}: {exc}", exc.status) from exc
        yield ModelServer(transport, model=identity.model, adapter=identity.adapter)


def identity_results(identity: ServerIdentity, *, wanted_context: int | None) -> list[CheckResult]:
    """wanted_context: the most tokens that the configured agent uses; None without a configured agent."""
    return [_engine_result(identity), _model_result(identity), _context_result(identity, wanted_context)]


def _engine_result(identity: ServerIdentity) -> CheckResult:
    name = _ENGINE_NAMES.get(identity.adapter.name)
    if name is None:
        return CheckResult(
            "engine",
            "note",
            "not recognised",
            "set `llm: engine:` if you know it; until then the only hint is prefetch",
        )
    return CheckResult("engine", "ok", f"{name} {identity.version}".strip())


def _model_result(identity: ServerIdentity) -> CheckResult:
    others = [name for name in identity.models if name != identity.model]
    if not others:
        return CheckResult("model", "ok", identity.model)
    shown_others = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
    return CheckResult(
        "model", "note", f"{identity.model}; also {shown_others}", "set `llm: model:` to the one you mean"
    )


def _context_result(identity: ServerIdentity, wanted: int | None) -> CheckResult:
    has = identity.context_tokens
    if has is None:
        return CheckResult(
            "context", "note", "the server does not report it", "set `agent: max_context_tokens:` by its model card"
        )
    if wanted is not None and has < wanted:
        advice = f"set `agent: max_context_tokens: {has}`, or serve the model with more"
        return CheckResult("context", "weaker", f"{has} tokens, and agent.max_context_tokens is {wanted}", advice)
    return CheckResult("context", "ok", f"{has} tokens")


async def _served_models(http: httpx2.AsyncClient, url: str) -> list[Mapping[str, Any]]:
    answer = await http.get(f"{url}/models")
    if answer.status_code in (401, 403):
        raise RequestFailed(f"HTTP {answer.status_code}: the server requires a key, or another key", answer.status_code)
    if answer.status_code != 200:
        raise RequestFailed(f"{url}/models answered HTTP {answer.status_code}", answer.status_code)
    try:
        entries = answer.json()["data"]
        found: list[Mapping[str, Any]] = [entry for entry in entries if isinstance(entry, dict) and entry.get("id")]
    except (ValueError, LookupError, TypeError):
        found = []
    if not found:
        raise RequestFailed(f"{url}/models lists no models")
    return found


def _choose(entries: list[Mapping[str, Any]], wanted: str | None) -> tuple[str, Mapping[str, Any]]:
    by_name = {str(entry["id"]): entry for entry in entries}
    name = wanted or next(iter(by_name))
    if name not in by_name:
        raise RequestFailed(f"the server does not have the model {name!r} (llm.model); it has {', '.join(by_name)}")
    return name, by_name[name]


async def _details(
    http: httpx2.AsyncClient, adapter: EngineAdapter, entry: Mapping[str, Any]
) -> tuple[str, int | None]:
    context = entry.get("max_model_len")
    match adapter.name:
        case "vllm":
            version = (await get_json(http, f"{adapter.root}/version")).get("version")
        case "sglang":
            version = None
            for page in SGLANG_INFO_PAGES:
                version = version or (await get_json(http, adapter.root + page)).get("version")
        case "llamacpp":
            properties = await get_json(http, f"{adapter.root}/props")
            version = properties.get("build_info")
            context = (properties.get("default_generation_settings") or {}).get("n_ctx", context)
        case _:
            version = None
    is_count = isinstance(context, int) and not isinstance(context, bool) and context > 0
    return str(version or "")[:60], context if is_count else None


def _secrets(settings: LlmSettings) -> list[str]:
    return [*([settings.api_key.get_secret_value()] if settings.api_key else []), *settings.headers.values()]
