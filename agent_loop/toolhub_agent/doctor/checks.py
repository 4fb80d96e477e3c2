"""The checks of a model server as an agent would use it, in order, with a time limit for all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

import anyio
import httpx2

from toolhub.config.llm import LlmSettings
from toolhub_agent.doctor.decoding import draft_counts
from toolhub_agent.doctor.probe import (
    REQUEST_TIMEOUT_S,
    CheckResult,
    ModelServer,
    RequestFailed,
    ServerIdentity,
    TimedAnswer,
    identity_results,
    read_identity,
)
from toolhub_agent.kv_hints.template import TemplateChecks, TemplateVerdict, results_for
from toolhub_agent.llm.concurrency import read_metrics
from toolhub_agent.llm.transport import ChatTransport
from toolhub_agent.types import Json, Message

# --- Unique prompts ---------------------------------------------------------------------------------------------------
# Prompts that share no prefix with other requests: their cached tokens come from these checks alone.
# About 3,000 tokens in most vocabularies.


MAX_SENTENCES = 230
# A sentence is 10 to 20 tokens; a prompt takes at most half of the context.
_SENTENCE_TOKENS = 20


def sentences_for(context_tokens: int | None) -> int:
    return (
        MAX_SENTENCES
        if context_tokens is None
        else max(8, min(MAX_SENTENCES, context_tokens // (2 * _SENTENCE_TOKENS)))
    )


def long_text(sentences: int) -> str:
    lines = (f"Entry {number}: the heron stood by the river and waited for rain." for number in range(sentences))
    return f"Notes {uuid4().hex}.\n" + "\n".join(lines)


# --- Prefix cache -----------------------------------------------------------------------------------------------------
# Is a prefix computed once, and does the server report it? The same prompt is sent several times.

# All blocks of a repeated prompt except the last are cached. Even with large blocks that is more than this share.
MIN_CACHED_SHARE = 0.5
# A cached prompt takes a fraction of the time. Twice as fast may be chance on a busy server.
_MUCH_FASTER = 0.4
_CACHE_ADVICE = {
    "vllm": "start vLLM with --enable-prefix-caching",
    "sglang": "start SGLang without --disable-radix-cache",
    "llamacpp": "start llama-server without --no-cache-prompt",
}
_REPORT_ADVICE = {
    "vllm": "start vLLM with --enable-prompt-tokens-details",
    "sglang": "start SGLang with --enable-cache-report",
}


async def check_caching(server: ModelServer, context_tokens: int | None) -> list[CheckResult]:
    """Raises RequestFailed."""
    await server.stream([{"role": "user", "content": "Hello"}])  # connects, and triggers the engine's one-time work
    messages: list[Message] = [{"role": "user", "content": long_text(sentences_for(context_tokens))}]
    cold = await server.stream(messages)
    warm = [await server.stream(messages) for _ in range(2)]
    whole = await server.whole(messages)
    streamed = _max_cached(warm)
    return [
        _reuse_result(server, cold, warm, streamed if streamed is not None else whole.usage.cached_tokens),
        _reporting_result(server, streamed, whole),
        _ttft_result(cold, warm),
    ]


def is_reused(answer: TimedAnswer) -> bool | None:
    """Whether most of the prompt was cached; None if the server does not report it."""
    usage = answer.usage
    return None if usage.cached_tokens is None else usage.cached_tokens >= MIN_CACHED_SHARE * usage.prompt_tokens


def _max_cached(answers: Sequence[TimedAnswer]) -> int | None:
    """The maximum, because some servers report cached tokens only if there were any."""
    return max((a.usage.cached_tokens for a in answers if a.usage.cached_tokens is not None), default=None)


def _reuse_result(
    server: ModelServer, cold: TimedAnswer, warm: Sequence[TimedAnswer], cached: int | None
) -> CheckResult:
    advice = _CACHE_ADVICE.get(server.adapter.name, "switch the server's prefix cache on")
    prompt = max(answer.usage.prompt_tokens for answer in warm)
    if cached is None:
        is_faster = _best_ttft(warm) < _MUCH_FASTER * cold.ttft
        seems = "is much faster" if is_faster else "is not faster"
        detail = f"the server does not report it; a repeated prompt {seems}"
        return CheckResult("prefix cache", "note" if is_faster else "weaker", detail, "" if is_faster else advice)
    detail = f"{cached} of {prompt} tokens were cached when a prompt was sent again"
    if cached >= MIN_CACHED_SHARE * prompt:
        return CheckResult("prefix cache", "ok", detail)
    return CheckResult(
        "prefix cache", "weaker", detail, f"{advice}; behind a router, let it keep a session on one server"
    )


def _reporting_result(server: ModelServer, streamed: int | None, whole: TimedAnswer) -> CheckResult:
    if streamed is not None:
        return CheckResult("cached tokens", "ok", "reported in streams")
    advice = _REPORT_ADVICE.get(server.adapter.name, "without them, hints go by time to first token only")
    if whole.usage.cached_tokens is not None:
        return CheckResult("cached tokens", "weaker", "reported in whole answers, but not in streams", advice)
    return CheckResult("cached tokens", "weaker", "not reported", advice)


def _ttft_result(cold: TimedAnswer, warm: Sequence[TimedAnswer]) -> CheckResult:
    prompt = cold.usage.prompt_tokens
    of = f" for {prompt} tokens" if prompt else ""
    return CheckResult("TTFT", "ok", f"{_ms(cold.ttft)} cold, {_ms(_best_ttft(warm))} warm{of}")


def _best_ttft(answers: Sequence[TimedAnswer]) -> float:
    return min(answer.ttft for answer in answers)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


# --- Native tool calls ------------------------------------------------------------------------------------------------
# Do native tool calls work? The XML protocol needs no support by the server.

LOOK_UP_TOOL: Json = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up a word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
_TOOL_PROMPT: list[Message] = [
    {"role": "user", "content": "Call the tool look_up with the word heron. Say nothing else."}
]
# A model that thinks first needs more tokens. It is cut off, because the check does not wait for it.
_TOOL_TOKENS = 400
_PARSER_ADVICE = {
    "vllm": "start vLLM with --enable-auto-tool-choice and the --tool-call-parser of your model",
    "sglang": "start SGLang with the --tool-call-parser of your model",
    "dynamo": "start the workers with the --dyn-tool-call-parser of your model",
    "llamacpp": "start llama-server with --jinja and a template that has tools",
}


async def check_tools(server: ModelServer) -> list[CheckResult]:
    """Check native calls. Raises RequestFailed if the server is gone. A refusal is a check result."""
    advice = _PARSER_ADVICE.get(server.adapter.name, "see how your server parses tool calls")
    advice += "; or keep `agent: protocol: xml`, which needs none"
    try:
        answer = await server.whole(_TOOL_PROMPT, tools=[LOOK_UP_TOOL], tool_choice="auto", max_tokens=_TOOL_TOKENS)
    except RequestFailed as exc:
        if exc.status is None or exc.status >= 500:
            raise
        return [CheckResult("native tool calls", "weaker", str(exc), advice)]
    return [_tool_result(answer, advice)]


def _tool_result(answer: TimedAnswer, advice: str) -> CheckResult:
    calls = answer.message.get("tool_calls") or []
    names = [(call.get("function") or {}).get("name") for call in calls if isinstance(call, dict)]
    if names == ["look_up"]:
        return CheckResult("native tool calls", "ok", "the model called a tool when asked to")
    content = answer.message.get("content") or ""
    if "look_up" in content and ("tool_call" in content or '"name"' in content):
        return CheckResult(
            "native tool calls", "weaker", "a call came back as text: no parser, or the wrong one", advice
        )
    return CheckResult("native tool calls", "note", "accepted, but this model did not call a tool when asked to")


# --- Chat template ----------------------------------------------------------------------------------------------------
# Is the chat template append-only? The server's tokenizer shows it; without one, the cache does.

_TEMPLATE_HEAD: list[Message] = [
    {"role": "system", "content": "You answer briefly."},
    {"role": "user", "content": "Go on."},
]
_TEMPLATE_CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "heron"}'}}
_TEMPLATE_KINDS: Mapping[str, tuple[Message, Json]] = {
    "text": ({"role": "assistant", "content": "I look it up."}, {}),
    "native calls": (
        {"role": "assistant", "content": "I look.", "tool_calls": [_TEMPLATE_CALL]},
        {"tools": [LOOK_UP_TOOL]},
    ),
    "thinking": ({"role": "assistant", "content": "<think>\nA heron?\n</think>\n\nI look it up."}, {}),
}
_TEMPLATE_ADVICE = "a prefetch does not help such turns, so none is sent; see the model's template"


async def check_templates(server: ModelServer, context_tokens: int | None) -> list[CheckResult]:
    """One result per kind of turn. Raises RequestFailed."""
    checks = TemplateChecks()
    found = {kind: await _ask_template(server, checks, kind) for kind in _TEMPLATE_KINDS}
    if set(found.values()) == {TemplateVerdict.UNKNOWN}:
        return [await _measure_template(server, context_tokens)]
    return [_template_result(kind, verdict) for kind, verdict in found.items()]


async def _ask_template(server: ModelServer, checks: TemplateChecks, kind: str) -> TemplateVerdict:
    turn, body = _TEMPLATE_KINDS[kind]
    try:
        with anyio.fail_after(REQUEST_TIMEOUT_S):
            return await checks.check(server.http, server.adapter, server.prompt([*_TEMPLATE_HEAD, turn], **body))
    except (httpx2.HTTPError, TimeoutError) as exc:
        raise RequestFailed(f"its tokenizer did not answer ({type(exc).__name__})") from exc


def _template_result(kind: str, verdict: TemplateVerdict) -> CheckResult:
    check = f"template, {kind}"
    if verdict is TemplateVerdict.APPEND_ONLY:
        return CheckResult(check, "ok", "append-only: a turn begins with the one before")
    if verdict is TemplateVerdict.REWRITES:
        return CheckResult(check, "note" if kind == "thinking" else "weaker", "rewrites history", _TEMPLATE_ADVICE)
    return CheckResult(check, "note", "the server does not render such a turn")


async def _measure_template(server: ModelServer, context_tokens: int | None) -> CheckResult:
    """Send a long assistant turn, then the same with a result after it: was the turn cached?"""
    turn: Message = {"role": "assistant", "content": long_text(sentences_for(context_tokens))}
    history = [*_TEMPLATE_HEAD, turn]
    await server.stream(history)
    answer = await server.stream([*history, *results_for(turn)])
    is_found = is_reused(answer)
    if is_found is None:
        return CheckResult("template", "note", "the server neither renders prompts nor reports cached tokens")
    if is_found:
        return CheckResult(
            "template", "ok", "append-only for text, as its cache shows (the server has no tokenizer to ask)"
        )
    return CheckResult("template", "weaker", "a past answer was not found in the cache", _TEMPLATE_ADVICE)


# --- Hints ------------------------------------------------------------------------------------------------------------
# Which hints work? One prefetch is sent. The rest follows from the engine and its settings.

_PINS_IN_METRICS = "toolhub_pins"


async def check_hints(server: ModelServer, page: str, context_tokens: int | None, *, pin: bool) -> list[CheckResult]:
    """page: the metrics. pin: the config's `hints: use_pin_scheduler`. Raises RequestFailed if the server is gone."""
    return [await _prefetch_result(server, context_tokens), _retention_result(server, page, pin)]


async def _prefetch_result(server: ModelServer, context_tokens: int | None) -> CheckResult:
    messages: list[Message] = [{"role": "user", "content": long_text(sentences_for(context_tokens))}]
    try:
        await server.prefetch(server.prompt(messages))
    except RequestFailed as exc:
        if exc.status is None:
            raise
        return CheckResult("hint: prefetch", "weaker", str(exc), "set `hints: {mode: off}`")
    answer = await server.stream(messages)
    prompt, cached = answer.usage.prompt_tokens, answer.usage.cached_tokens
    is_found = is_reused(answer)
    if is_found is None:
        return CheckResult("hint: prefetch", "note", "accepted; whether it helps shows in the time to first token")
    detail = f"{cached} of {prompt} tokens were in the cache when the request came"
    if is_found:
        return CheckResult("hint: prefetch", "ok", detail)
    return CheckResult("hint: prefetch", "weaker", detail, "it needs the prefix cache; see above")


def _retention_result(server: ModelServer, page: str, pin: bool) -> CheckResult:
    """Whether the server can keep a conversation's cache while its tools run."""
    check = "hint: retention"
    match server.adapter.name:
        case "vllm":
            return _pin_result(check, page, pin)
        case "sglang":
            # What can be released is held.
            if server.adapter.release(server.session, None, {}) is not None:
                return CheckResult(check, "ok", "live sessions are evicted last (--enable-session-radix-cache)")
            advice = "SGLANG_ENABLE_UNIFIED_RADIX_TREE=1 and --enable-session-radix-cache; toolhub llm-command sglang"
            return CheckResult(check, "note", "the server does not protect sessions", advice)
        case "dynamo":
            detail = "the server has none; session ids are sent in headers"
            return CheckResult(
                check, "note", detail, "start the frontend with --router-session-affinity-ttl-secs to use them"
            )
        case _:
            return CheckResult(
                check, "note", "the server has none; a prefetch computes again what was evicted during a tool call"
            )


def _pin_result(check: str, page: str, pin: bool) -> CheckResult:
    is_seen = _PINS_IN_METRICS in page
    if is_seen and pin:
        return CheckResult(check, "ok", "toolhub's scheduler keeps a conversation's blocks while its tools run")
    if is_seen:
        return CheckResult(
            check, "note", "toolhub's scheduler is there, but not used", "set `hints: {use_pin_scheduler: true}`"
        )
    seen = "toolhub's scheduler is not seen in /metrics"
    if pin:
        return CheckResult(check, "note", seen, "it shows there only if PROMETHEUS_MULTIPROC_DIR was set for vLLM")
    return CheckResult(
        check,
        "note",
        seen,
        "toolhub llm-command vllm-tp shows how to start it; then `hints: {use_pin_scheduler: true}`",
    )


# --- Metrics ----------------------------------------------------------------------------------------------------------
# Does the engine report its queue? The number of concurrent requests can follow it.

_METRICS_ADVICE = {
    "vllm": "start vLLM without --disable-log-stats",
    "sglang": "start SGLang with --enable-metrics",
    "llamacpp": "start llama-server with --metrics",
    "dynamo": "Dynamo's frontend has metrics of its own, not of the workers' queues; set `llm: max_in_flight:`",
}


def load_result(server: ModelServer, page: str) -> CheckResult:
    reading = read_metrics(page)
    if reading is not None:
        usage = f"{reading.usage:.0%} of its cache in use"
        return CheckResult("metrics", "ok", f"{reading.running} running, {reading.waiting} waiting, {usage}")
    advice = _METRICS_ADVICE.get(server.adapter.name, "set `llm: max_in_flight:` to what the server takes at once")
    what = "no queue is reported" if page else "there are no metrics"
    return CheckResult("metrics", "weaker", f"{what} at {server.adapter.root}/metrics", advice)


def speculation_results(server: ModelServer, page: str) -> list[CheckResult]:
    """One result if the server drafts tokens, else none."""
    counts = draft_counts(page)
    if counts is None:
        return []
    share = counts.acceptance
    detail = "nothing was drafted yet" if share is None else f"on; {share:.0%} of the drafted tokens were accepted"
    advice = f"toolhub doctor --llm {server.url} --against URL compares it with a server that does not speculate"
    return [CheckResult("speculation", "note", detail, advice)]


# --- All checks -------------------------------------------------------------------------------------------------------
# All checks in order, with a time limit for all of them.

# A dozen requests of 3,000 tokens take seconds. On a busy server each may take its own limit.
TOTAL_TIMEOUT_S = 240.0


@dataclass(frozen=True)
class DoctorReport:
    """error: why nothing could be checked. fix: what to try. Both are empty if the server answered."""

    url: str
    findings: tuple[CheckResult, ...] = ()
    error: str = ""
    fix: str = ""

    @property
    def is_reachable(self) -> bool:
        return not self.error


async def run_checks(
    transport: ChatTransport,
    settings: LlmSettings,
    *,
    wanted_context: int | None = None,
    progress: Callable[[str], None] = lambda _text: None,
) -> DoctorReport:
    """transport: to the endpoint. progress: called with the name of each check as it begins."""
    progress("connecting")
    url = transport.endpoint
    try:
        identity = await read_identity(transport.http, url, settings)
    except RequestFailed as exc:
        return DoctorReport(url, error=str(exc), fix=_advice_for(exc))
    server = ModelServer(transport, model=identity.model, adapter=identity.adapter)
    found = identity_results(identity, wanted_context=wanted_context)
    checks = _Checks(server, identity, settings, progress, found)
    with anyio.move_on_after(TOTAL_TIMEOUT_S) as bound:
        await checks.run()
    if bound.cancelled_caught:
        found.append(
            CheckResult(
                "time",
                "weaker",
                f"not all checks ended within {TOTAL_TIMEOUT_S:.0f} s",
                "check again when the server is less busy",
            )
        )
    return DoctorReport(url, tuple(found))


@dataclass
class _Checks:
    server: ModelServer
    identity: ServerIdentity
    settings: LlmSettings
    progress: Callable[[str], None]
    found: list[CheckResult]

    async def run(self) -> None:
        context = self.identity.context_tokens
        page = await self._page()
        await self._add("prefix cache", lambda: check_caching(self.server, context))
        await self._add("template", lambda: check_templates(self.server, context))
        pin = self.settings.hints.use_pin_scheduler
        await self._add("hints", lambda: check_hints(self.server, page, context, pin=pin))
        await self._add("native tool calls", lambda: check_tools(self.server))

    async def _page(self) -> str:
        """The metrics before the first request of a check: the queue of other clients."""
        self.progress("metrics")
        try:
            page = await self.server.metrics_page()
        except RequestFailed as exc:
            self.found.append(CheckResult("metrics", "weaker", str(exc)))
            return ""
        self.found.append(load_result(self.server, page))
        self.found += speculation_results(self.server, page)
        return page

    async def _add(self, name: str, check: Callable[[], Awaitable[list[CheckResult]]]) -> None:
        self.progress(name)
        try:
            self.found += await check()
        except RequestFailed as exc:
            self.found.append(
                CheckResult(name, "weaker", str(exc), "try it by hand; the other checks do not depend on it")
            )


def _advice_for(exc: RequestFailed) -> str:
    if exc.status in (401, 403):
        return (
            "put the key into the config (`llm: api_key:`) with this address under `llm: endpoints:`, and name --config"
        )
    if exc.status == 404:
        return "is the address right? it ends in /v1, as in http://127.0.0.1:8000/v1"
    return "is the server running, and is the address right? `toolhub llm-command` shows how to start one"
