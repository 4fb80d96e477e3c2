"""Which hints work: one prefill-ahead is really sent, and the rest follows from what the server is and has."""

from __future__ import annotations

from toolhub_agent.checkup.caching import is_reused
from toolhub_agent.checkup.finding import Finding
from toolhub_agent.checkup.server import ModelServer, Unanswered
from toolhub_agent.checkup.text import long_text, sentences_for
from toolhub_agent.types import Message

_PINS_IN_METRICS = "toolhub_pins"


async def check_hints(server: ModelServer, page: str, context_tokens: int | None, *, pin: bool) -> list[Finding]:
    """page: of metrics. pin: `hints: {pin: true}` is configured. Raises Unanswered if the server is gone."""
    return [await _prefill_ahead(server, context_tokens), _retention(server, page, pin)]


async def _prefill_ahead(server: ModelServer, context_tokens: int | None) -> Finding:
    messages: list[Message] = [{"role": "user", "content": long_text(sentences_for(context_tokens))}]
    try:
        await server.prefetch(server.prompt(messages))
    except Unanswered as exc:
        if exc.status is None:
            raise
        return Finding("hint: prefill-ahead", "weaker", str(exc), "set `hints: {mode: off}`")
    answer = await server.stream(messages)
    prompt, cached = answer.usage.prompt_tokens, answer.usage.cached_tokens
    is_found = is_reused(answer)
    if is_found is None:
        return Finding("hint: prefill-ahead", "note", "accepted; whether it helps shows in the time to first token")
    detail = f"{cached} of {prompt} tokens were there when the request came"
    if is_found:
        return Finding("hint: prefill-ahead", "ok", detail)
    return Finding("hint: prefill-ahead", "weaker", detail, "it needs the prefix cache; see above")


def _retention(server: ModelServer, page: str, pin: bool) -> Finding:
    """Can a conversation's cache be kept while its tools run?"""
    check = "hint: retention"
    match server.adapter.name:
        case "vllm":
            return _pins(check, page, pin)
        case "sglang":
            # What can be released is held.
            if server.adapter.release(server.session, None, {}) is not None:
                return Finding(check, "ok", "live sessions are evicted last (--enable-session-radix-cache)")
            advice = "SGLANG_ENABLE_UNIFIED_RADIX_TREE=1 and --enable-session-radix-cache; toolhub llm-command sglang"
            return Finding(check, "note", "the server does not protect sessions", advice)
        case "dynamo":
            detail = "none to ask for; session ids are sent in headers"
            return Finding(check, "note", detail, "the frontend goes by them with --router-session-affinity-ttl-secs")
        case _:
            return Finding(check, "note", "none to ask for; what is evicted during a tool call is computed ahead again")


def _pins(check: str, page: str, pin: bool) -> Finding:
    is_seen = _PINS_IN_METRICS in page
    if is_seen and pin:
        return Finding(check, "ok", "toolhub's scheduler keeps a conversation's blocks while its tools run")
    if is_seen:
        return Finding(check, "note", "toolhub's scheduler is there, but not used", "set `hints: {pin: true}`")
    seen = "toolhub's scheduler is not seen in /metrics"
    if pin:
        return Finding(check, "note", seen, "it shows there only if PROMETHEUS_MULTIPROC_DIR was set for vLLM")
    return Finding(check, "note", seen, "toolhub llm-command vllm-tp shows how to start it; then `hints: {pin: true}`")
