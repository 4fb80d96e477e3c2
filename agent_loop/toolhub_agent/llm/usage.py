"""Token counts out of the many spellings of servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolhub_agent.model import Usage


def usage_of(usage: Mapping[str, Any], chunk: Mapping[str, Any] | None = None) -> Usage:
    """Read a `usage` object. chunk: the whole answer or chunk, where some servers tell of the cache beside it."""
    return Usage(
        prompt_tokens=_count(usage.get("prompt_tokens", usage.get("input_tokens"))) or 0,
        completion_tokens=_count(usage.get("completion_tokens", usage.get("output_tokens"))) or 0,
        cached_tokens=_cached(usage, chunk or {}),
    )


def _cached(usage: Mapping[str, Any], chunk: Mapping[str, Any]) -> int | None:
    places = (
        _of(usage.get("prompt_tokens_details"), "cached_tokens"),  # OpenAI, vLLM, SGLang with --enable-cache-report
        _of(usage.get("input_tokens_details"), "cached_tokens"),  # the Responses API's name
        usage.get("cached_tokens"),
        usage.get("prompt_cache_hit_tokens"),  # DeepSeek
        usage.get("cache_read_input_tokens"),  # Anthropic's
        _of(_of(chunk.get("sglext"), "cached_tokens_details"), "device"),  # SGLang, return_cached_tokens_details
        _of(chunk.get("timings"), "cache_n"),  # llama.cpp
    )
    return next((count for place in places if (count := _count(place)) is not None), None)


def _of(outer: Any, key: str) -> Any:
    return outer.get(key) if isinstance(outer, Mapping) else None


def _count(value: Any) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return int(value) if is_count else None
