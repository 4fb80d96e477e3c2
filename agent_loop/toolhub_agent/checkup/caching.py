"""Is a prefix computed once, and does the server tell? The same prompt is sent several times."""

from __future__ import annotations

from collections.abc import Sequence

from toolhub_agent.checkup.finding import Finding
from toolhub_agent.checkup.server import Answer, ModelServer
from toolhub_agent.checkup.text import long_text, sentences_for
from toolhub_agent.types import Message

# Of a repeated prompt all but the last block is cached; with a large block that is still more than this.
MOST_OF_IT = 0.5
# A prompt that is cached takes a fraction of the time; twice as fast may be chance on a busy server.
_MUCH_FASTER = 0.4
_ON = {
    "vllm": "start vLLM with --enable-prefix-caching",
    "sglang": "start SGLang without --disable-radix-cache",
    "llamacpp": "start llama-server without --no-cache-prompt",
}
_TELL = {
    "vllm": "start vLLM with --enable-prompt-tokens-details",
    "sglang": "start SGLang with --enable-cache-report",
}


async def check_caching(server: ModelServer, context_tokens: int | None) -> list[Finding]:
    """Raises Unanswered."""
    await server.stream([{"role": "user", "content": "Hello"}])  # connects; what an engine does once is done
    messages: list[Message] = [{"role": "user", "content": long_text(sentences_for(context_tokens))}]
    cold = await server.stream(messages)
    warm = [await server.stream(messages) for _ in range(2)]
    whole = await server.whole(messages)
    streamed = _cached(warm)
    return [
        _reuse(server, cold, warm, streamed if streamed is not None else whole.usage.cached_tokens),
        _reporting(server, streamed, whole),
        _speed(cold, warm),
    ]


def is_reused(answer: Answer) -> bool | None:
    """Was most of the prompt cached? None if the server does not tell."""
    usage = answer.usage
    return None if usage.cached_tokens is None else usage.cached_tokens >= MOST_OF_IT * usage.prompt_tokens


def _cached(answers: Sequence[Answer]) -> int | None:
    """Some servers tell of a cache only when there was something in it."""
    return max((a.usage.cached_tokens for a in answers if a.usage.cached_tokens is not None), default=None)


def _reuse(server: ModelServer, cold: Answer, warm: Sequence[Answer], cached: int | None) -> Finding:
    advice = _ON.get(server.adapter.name, "switch the server's prefix cache on")
    prompt = max(answer.usage.prompt_tokens for answer in warm)
    if cached is None:
        is_faster = _best(warm) < _MUCH_FASTER * cold.ttft
        seems = "is much faster" if is_faster else "is not faster"
        detail = f"the server does not tell; a repeated prompt {seems}"
        return Finding("prefix cache", "note" if is_faster else "weaker", detail, "" if is_faster else advice)
    detail = f"{cached} of {prompt} tokens were cached when a prompt was sent again"
    if cached >= MOST_OF_IT * prompt:
        return Finding("prefix cache", "ok", detail)
    return Finding("prefix cache", "weaker", detail, f"{advice}; behind a router, let it keep a session on one server")


def _reporting(server: ModelServer, streamed: int | None, whole: Answer) -> Finding:
    if streamed is not None:
        return Finding("cached tokens", "ok", "told in streams")
    advice = _TELL.get(server.adapter.name, "without them, hints go by time to first token only")
    if whole.usage.cached_tokens is not None:
        return Finding("cached tokens", "weaker", "told in whole answers, but not in streams", advice)
    return Finding("cached tokens", "weaker", "not told", advice)


def _speed(cold: Answer, warm: Sequence[Answer]) -> Finding:
    prompt = cold.usage.prompt_tokens
    of = f" for {prompt} tokens" if prompt else ""
    return Finding("TTFT", "ok", f"{_ms(cold.ttft)} cold, {_ms(_best(warm))} warm{of}")


def _best(answers: Sequence[Answer]) -> float:
    return min(answer.ttft for answer in answers)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"
