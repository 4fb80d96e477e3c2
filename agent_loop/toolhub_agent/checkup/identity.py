"""Which server it is: the models it serves, its engine and version, how long a prompt may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2

from toolhub.config.llm import LlmSettings
from toolhub_agent.checkup.finding import Finding
from toolhub_agent.checkup.server import Unanswered
from toolhub_agent.kv_hints.engines import SGLANG_INFO_PAGES, EngineAdapter, adapter_for, get_json, identify
from toolhub_agent.llm.errors import sanitize

# For a page that costs the server nothing.
PATIENCE_S = 10.0
_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "dynamo": "Dynamo", "llamacpp": "llama.cpp"}


@dataclass(frozen=True)
class Identity:
    """context_tokens: None if the server does not tell."""

    model: str
    models: tuple[str, ...]
    adapter: EngineAdapter
    version: str = ""
    context_tokens: int | None = None


async def read_identity(http: httpx2.AsyncClient, url: str, settings: LlmSettings) -> Identity:
    """Raises Unanswered if nothing answers, or nothing that serves models."""
    try:
        with anyio.fail_after(settings.connect_timeout_s + 4 * PATIENCE_S):
            entries = await _models(http, url)
            model, chosen = _choose(entries, settings.model)
            engine = settings.engine if settings.engine != "auto" else await identify(http, url)
            adapter = adapter_for(engine, url, pin=settings.hints.pin)
            await adapter.probe(http)
            version, context = await _details(http, adapter, chosen)
    except TimeoutError as exc:
        raise Unanswered("no answer in time") from exc
    except (httpx2.HTTPError, httpx2.StreamError) as exc:
        raise Unanswered(sanitize(f"{type(exc).__name__}: {exc}".rstrip(": "), _secrets(settings))) from exc
    names = tuple(str(entry["id"]) for entry in entries)
    return Identity(model, names, adapter, version, context)


def findings(identity: Identity, *, wanted_context: int | None) -> list[Finding]:
    """wanted_context: tokens that the configured agent uses at most; None where no agent is configured."""
    return [_engine_finding(identity), _model_finding(identity), _context_finding(identity, wanted_context)]


def _engine_finding(identity: Identity) -> Finding:
    name = _NAMES.get(identity.adapter.name)
    if name is None:
        return Finding(
            "engine", "note", "not recognised", "if you know better, set `llm: engine:`; hints are prefill-ahead only"
        )
    return Finding("engine", "ok", f"{name} {identity.version}".strip())


def _model_finding(identity: Identity) -> Finding:
    others = [name for name in identity.models if name != identity.model]
    if not others:
        return Finding("model", "ok", identity.model)
    shown_others = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
    return Finding("model", "note", f"{identity.model}; also {shown_others}", "set `llm: model:` to the one you mean")


def _context_finding(identity: Identity, wanted: int | None) -> Finding:
    has = identity.context_tokens
    if has is None:
        return Finding(
            "context", "note", "the server does not tell", "set `agent: max_context_tokens:` by its model card"
        )
    if wanted is not None and has < wanted:
        advice = f"set `agent: max_context_tokens: {has}`, or serve the model with more"
        return Finding("context", "weaker", f"{has} tokens, and agent.max_context_tokens is {wanted}", advice)
    return Finding("context", "ok", f"{has} tokens")


async def _models(http: httpx2.AsyncClient, url: str) -> list[Mapping[str, Any]]:
    answer = await http.get(f"{url}/models")
    if answer.status_code in (401, 403):
        raise Unanswered(f"HTTP {answer.status_code}: it wants a key, or another one", answer.status_code)
    if answer.status_code != 200:
        raise Unanswered(f"{url}/models answered HTTP {answer.status_code}", answer.status_code)
    try:
        entries = answer.json()["data"]
        found: list[Mapping[str, Any]] = [entry for entry in entries if isinstance(entry, dict) and entry.get("id")]
    except (ValueError, LookupError, TypeError):
        found = []
    if not found:
        raise Unanswered(f"{url}/models lists no models")
    return found


def _choose(entries: list[Mapping[str, Any]], wanted: str | None) -> tuple[str, Mapping[str, Any]]:
    by_name = {str(entry["id"]): entry for entry in entries}
    name = wanted or next(iter(by_name))
    if name not in by_name:
        raise Unanswered(f"it does not serve {name!r} (llm.model), but {', '.join(by_name)}")
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
