"""Checks whether the chat template is append-only. If it is not, a prefetch computes tokens that no request uses.

The check runs before the first prefetch, with the server's own template. The template renders a history that ends with
the assistant's turn, and the same history followed by a tool result. The first must be a prefix of the second. A
template fails if it drops the thinking of past turns, or if it renders tool calls differently once they are answered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from toolhub_agent.kv_hints.signals import Prompt
from toolhub_agent.types import Message

if TYPE_CHECKING:
    import httpx2

    from toolhub_agent.kv_hints.engines import EngineAdapter

# Prefetches that missed the cache before a template that cannot be checked counts as rewriting.
TRIALS = 3
# Share of the prefetched prompt that must be found in the cache. The template may rewrite the rest, its tail.
_FOUND_SHARE = 0.8
# One agent has no more kinds of prompts than this.
_MAX_KINDS = 256


class TemplateVerdict(Enum):
    APPEND_ONLY = "append-only"
    REWRITES = "rewrites history"
    UNKNOWN = "cannot be asked"


class TemplateChecks:
    """The verdicts for one endpoint, one per kind of prompt."""

    def __init__(self) -> None:
        self._verdicts: dict[str, TemplateVerdict] = {}
        self._misses: dict[str, int] = {}

    @property
    def rewrites(self) -> bool:
        """Whether some kind of prompt is rewritten and no kind is known to be append-only."""
        found = set(self._verdicts.values())
        return TemplateVerdict.REWRITES in found and TemplateVerdict.APPEND_ONLY not in found

    def verdict(self, prompt: Prompt) -> TemplateVerdict | None:
        """The verdict; None if it was not checked yet."""
        return self._verdicts.get(kind_of(prompt))

    async def check(self, http: httpx2.AsyncClient, adapter: EngineAdapter, prompt: Prompt) -> TemplateVerdict:
        """Check with the server. Raises httpx2.HTTPError if it does not answer; then nothing is remembered."""
        sample = replace(prompt, messages=sample_of(prompt.messages))
        if not sample.messages:
            return TemplateVerdict.UNKNOWN
        before = await adapter.tokens(http, sample)
        after = await adapter.tokens(http, replace(sample, messages=sample.messages + results_for(sample.messages[-1])))
        if before is None or after is None:
            verdict = TemplateVerdict.UNKNOWN
        else:
            is_prefix = len(after) > len(before) and after[: len(before)] == before
            verdict = TemplateVerdict.APPEND_ONLY if is_prefix else TemplateVerdict.REWRITES
        self._remember(prompt, verdict)
        return verdict

    def measured(self, prompt: Prompt, prefetch_tokens: int, cached_tokens: int) -> None:
        """If the server cannot check it, decide by what the turn after a prefetch found in the cache."""
        kind = kind_of(prompt)
        if self._verdicts.get(kind) is not TemplateVerdict.UNKNOWN:
            return
        if cached_tokens >= _FOUND_SHARE * prefetch_tokens:
            self._verdicts[kind] = TemplateVerdict.APPEND_ONLY
            return
        self._misses[kind] = self._misses.get(kind, 0) + 1
        if self._misses[kind] >= TRIALS:
            self._verdicts[kind] = TemplateVerdict.REWRITES

    def _remember(self, prompt: Prompt, verdict: TemplateVerdict) -> None:
        if len(self._verdicts) >= _MAX_KINDS:
            self._verdicts.clear()
            self._misses.clear()
        self._verdicts[kind_of(prompt)] = verdict


def kind_of(prompt: Prompt) -> str:
    """What a template's behaviour depends on: the model, its arguments, and the form of the assistant's turns."""
    turns = [message for message in prompt.messages if message.get("role") == "assistant"]
    last: Mapping[str, Any] = turns[-1] if turns else {}
    thinks = any(_has_thinking(message) for message in turns)
    settings = [prompt.body.get(name) for name in ("model", "chat_template", "chat_template_kwargs")]
    shape = [bool(last.get("tool_calls")), thinks, bool(prompt.body.get("tools")), len(turns) > 1]
    return json.dumps([settings, shape], sort_keys=True, default=str)


def sample_of(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The smallest part of a history that shows how the template treats it: its start and the last two turns."""
    turns = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
    if not turns:
        return messages
    upto = messages[: turns[-1] + 1]
    if len(turns) == 1:
        return upto
    head = [message for message in upto[: turns[0]] if message.get("role") in ("system", "developer", "user")][:2]
    return (*head, *upto[turns[-2] :])


def results_for(assistant: Message) -> tuple[Message, ...]:
    """Results as an agent would send them: tool messages for native calls, else a user message."""
    calls = assistant.get("tool_calls") or ()
    if not calls:
        return ({"role": "user", "content": "The result."},)
    return tuple({"role": "tool", "tool_call_id": call.get("id"), "content": "The result."} for call in calls)


def _has_thinking(message: Message) -> bool:
    content = message.get("content")
    return bool(message.get("reasoning_content")) or (isinstance(content, str) and "</think>" in content)
