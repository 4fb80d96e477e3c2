"""Does the chat template only append? Asked of the server's tokenizer; where there is none, seen in the cache."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import httpx2

from toolhub_agent.checkup.caching import is_reused
from toolhub_agent.checkup.finding import Finding
from toolhub_agent.checkup.server import PATIENCE_S, ModelServer, Unanswered
from toolhub_agent.checkup.text import long_text, sentences_for
from toolhub_agent.checkup.tools import LOOK_UP
from toolhub_agent.kv_hints.template import TemplateChecks, TemplateVerdict, results_for
from toolhub_agent.types import Json, Message

_HEAD: list[Message] = [{"role": "system", "content": "You answer briefly."}, {"role": "user", "content": "Go on."}]
_CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "heron"}'}}
_KINDS: Mapping[str, tuple[Message, Json]] = {
    "text": ({"role": "assistant", "content": "I look it up."}, {}),
    "native calls": ({"role": "assistant", "content": "I look.", "tool_calls": [_CALL]}, {"tools": [LOOK_UP]}),
    "thinking": ({"role": "assistant", "content": "<think>\nA heron?\n</think>\n\nI look it up."}, {}),
}
_ADVICE = "a prefill-ahead is of no use for such turns, and the hints leave it out; see the model's template"


async def check_templates(server: ModelServer, context_tokens: int | None) -> list[Finding]:
    """One finding per kind of turn. Raises Unanswered."""
    checks = TemplateChecks()
    found = {kind: await _ask(server, checks, kind) for kind in _KINDS}
    if set(found.values()) == {TemplateVerdict.UNKNOWN}:
        return [await _measure(server, context_tokens)]
    return [_finding(kind, verdict) for kind, verdict in found.items()]


async def _ask(server: ModelServer, checks: TemplateChecks, kind: str) -> TemplateVerdict:
    turn, body = _KINDS[kind]
    try:
        with anyio.fail_after(PATIENCE_S):
            return await checks.check(server.http, server.adapter, server.prompt([*_HEAD, turn], **body))
    except (httpx2.HTTPError, TimeoutError) as exc:
        raise Unanswered(f"its tokenizer did not answer ({type(exc).__name__})") from exc


def _finding(kind: str, verdict: TemplateVerdict) -> Finding:
    check = f"template, {kind}"
    if verdict is TemplateVerdict.APPEND_ONLY:
        return Finding(check, "ok", "append-only: a turn begins with the one before")
    if verdict is TemplateVerdict.REWRITES:
        return Finding(check, "note" if kind == "thinking" else "weaker", "rewrites history", _ADVICE)
    return Finding(check, "note", "the server does not render such a turn")


async def _measure(server: ModelServer, context_tokens: int | None) -> Finding:
    """A long assistant turn, then the same with a result behind it: was the turn found again?"""
    turn: Message = {"role": "assistant", "content": long_text(sentences_for(context_tokens))}
    history = [*_HEAD, turn]
    await server.stream(history)
    answer = await server.stream([*history, *results_for(turn)])
    is_found = is_reused(answer)
    if is_found is None:
        return Finding("template", "note", "the server neither renders a prompt nor tells of cached tokens")
    if is_found:
        return Finding("template", "ok", "append-only for text, by what was cached (there is no tokenizer to ask)")
    return Finding("template", "weaker", "a past answer was not found in the cache", _ADVICE)
