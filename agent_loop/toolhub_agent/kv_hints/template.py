"""Is the chat template append-only? Else a prefetch computes what the next request will not begin with.

Checked before the first prefetch, with the server's own template: what it makes of a history that ends with the
assistant's turn must be how it begins the same history with a tool result behind. Templates that drop the thinking of
past turns, or write tool calls differently once they are answered, fail.
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

# Trials of a template that cannot be asked about, without one that was found in the cache afterwards.
TRIALS = 3
# Of the prefetched prompt; the rest may be a tail that the template writes anew.
_FOUND_SHARE = 0.8
# A template sees no more kinds of prompts than this from one agent.
_MAX_KINDS = 256


class TemplateVerdict(Enum):
    APPEND_ONLY = "append-only"
    REWRITES = "rewrites history"
    UNKNOWN = "cannot be asked"


class TemplateChecks:
    """The verdicts for one endpoint, per kind of prompt."""

    def __init__(self) -> None:
        self._verdicts: dict[str, TemplateVerdict] = {}
        self._misses: dict[str, int] = {}

    @property
    def rewrites(self) -> bool:
        """Is some kind of prompt written anew, and none known not to be?"""
        found = set(self._verdicts.values())
        return TemplateVerdict.REWRITES in found and TemplateVerdict.APPEND_ONLY not in found

    def verdict(self, prompt: Prompt) -> TemplateVerdict | None:
        """None: not checked yet."""
        return self._verdicts.get(kind_of(prompt))

    async def check(self, http: httpx2.AsyncClient, adapter: EngineAdapter, prompt: Prompt) -> TemplateVerdict:
        """Ask the server. Raises httpx2.HTTPError if it does not answer; nothing is remembered then."""
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
        """What the turn after a prefetch found in the cache decides where the server cannot be asked."""
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
    """What a template's behaviour depends on: the model, its arguments, and how assistant turns are written."""
    turns = [message for message in prompt.messages if message.get("role") == "assistant"]
    last: Mapping[str, Any] = turns[-1] if turns else {}
    thinks = any(_has_thinking(message) for message in turns)
    settings = [prompt.body.get(name) for name in ("model", "chat_template", "chat_template_kwargs")]
    shape = [bool(last.get("tool_calls")), thinks, bool(prompt.body.get("tools")), len(turns) > 1]
    return json.dumps([settings, shape], sort_keys=True, default=str)


def sample_of(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """As little of a history as shows how the template treats it: its start, and the last two assistant turns."""
    turns = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
    if not turns:
        return messages
    upto = messages[: turns[-1] + 1]
    if len(turns) == 1:
        return upto
    head = [message for message in upto[: turns[0]] if message.get("role") in ("system", "developer", "user")][:2]
    return (*head, *upto[turns[-2] :])


def results_for(assistant: Message) -> tuple[Message, ...]:
    """Results as an agent would send them: tool messages for native calls, else the user's."""
    calls = assistant.get("tool_calls") or ()
    if not calls:
        return ({"role": "user", "content": "The result."},)
    return tuple({"role": "tool", "tool_call_id": call.get("id"), "content": "The result."} for call in calls)


def _has_thinking(message: Message) -> bool:
    content = message.get("content")
    return bool(message.get("reasoning_content")) or (isinstance(content, str) and "</think>" in content)
