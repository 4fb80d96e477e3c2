"""How much of each prompt a server's prefix cache could reuse, how much it did reuse, and what broke the rest.

Each prompt is compared with the one before, message by message in serialised form. With a tokenizer (the model's chat
template applied to messages) the reusable tokens are exact, and a template that renders old messages differently is
detected. Without one, tokens are estimated from the server's counts and the share of bytes, and such a template looks
like an eviction. The server may reuse a few more tokens than "reusable": it also holds those that it generated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from toolhub_agent.history import OMITTED, encoded
from toolhub_agent.types import Json, Message, Usage

if TYPE_CHECKING:
    from rich.table import Table

TOOL_RESULT_OMITTED = "tool result omitted"
SYSTEM_PROMPT_CHANGED = "system prompt changed"
TOOLS_CHANGED = "tools changed"
REQUEST_CHANGED = "request changed"
MESSAGE_CHANGED = "message changed"
MESSAGES_REMOVED = "messages removed"
TEMPLATE_RE_RENDERED = "template re-rendered"
EVICTED = "evicted by the server"
EVICTED_OR_RE_RENDERED = "evicted by the server or template re-rendered"

# The tokens that ask for an answer ("<|im_start|>assistant\n<think>\n"). The next prompt may not have them there.
_GENERATION_PROMPT = 16
# Servers reuse whole blocks only, of up to 128 tokens (vLLM on CPUs), and never the last token.
_BLOCK_SLACK = 160
# The tolerance of an estimate without a tokenizer.
_ESTIMATE_SLACK = 0.1
# The fields of a request, beside messages, that shape the prompt.
_SHAPING = ("model", "tools", "tool_choice", "chat_template", "chat_template_kwargs", "documents")

Tokenizer = Callable[[Sequence[Message]], Sequence[int]]
"""Turns messages into a prompt's tokens as the server does it."""


@dataclass(frozen=True, slots=True)
class PrefixTurn:
    """One request. Sizes are tokens; None: the server does not report them.

    reusable: the longest common prefix with the previous prompt. broken_at: the first message that differs, None if no
    single message is the cause.
    """

    turn: int
    prompt: int
    reusable: int
    cached: int | None
    computed: int | None
    broken_at: int | None = None
    broken_by: str | None = None


@dataclass(frozen=True, slots=True)
class _SentPrompt:
    messages: list[bytes]
    body: dict[str, bytes]
    tokens: Sequence[int] | None
    size: int
    prompt_tokens: int


class PrefixReport:
    """One conversation's turns in order."""

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        self._tokenizer = tokenizer
        self._last: _SentPrompt | None = None
        self.turns: list[PrefixTurn] = []

    def __repr__(self) -> str:
        return f"<PrefixReport {len(self.turns)} turns>"

    def add(self, turn: int, messages: Sequence[Message], body: Mapping[str, Any], usage: Usage) -> PrefixTurn:
        """Add an answered request. messages: as sent. body: its other fields, with `tools`."""
        last, now = self._last, self._read(messages, body, usage)
        self._last = now
        place, reason = (None, None) if last is None else _broken(last, now, messages)
        reusable = 0 if last is None else _reusable(last, now, place, reason)
        if last is not None and reason is None:
            reason = _lost(last, now, reusable, usage.cached_tokens)
        cached = usage.cached_tokens
        computed = None if cached is None else max(usage.prompt_tokens - cached, 0)
        self.turns.append(PrefixTurn(turn, usage.prompt_tokens, reusable, cached, computed, place, reason))
        return self.turns[-1]

    def _read(self, messages: Sequence[Message], body: Mapping[str, Any], usage: Usage) -> _SentPrompt:
        written = [encoded(message) for message in messages]
        shape = {name: encoded(body[name]) for name in _SHAPING if body.get(name) is not None}
        tokens = self._tokenizer(messages) if self._tokenizer else None
        size = sum(map(len, written)) + len(shape.get("tools", b""))
        return _SentPrompt(written, shape, tokens, size, usage.prompt_tokens or len(tokens or ()))

    def as_json(self) -> Json:
        """``{"turns": [fields of PrefixTurn], "total": {"prompt", "reusable", "cached", "computed"}}``"""
        return {"turns": [asdict(turn) for turn in self.turns], "total": self._total()}

    def _total(self) -> dict[str, int | None]:
        cached = [turn.cached for turn in self.turns if turn.cached is not None]
        computed = [turn.computed for turn in self.turns if turn.computed is not None]
        return {
            "prompt": sum(turn.prompt for turn in self.turns),
            "reusable": sum(turn.reusable for turn in self.turns),
            "cached": sum(cached) if cached else None,
            "computed": sum(computed) if computed else None,
        }

    def table(self) -> Table:
        """The report as a rich table."""
        from rich.table import Table  # imported here: only the command line needs it

        exact = self._tokenizer is not None
        table = Table(title="Prompt tokens" if exact else "Prompt tokens (reusable: estimated)", show_footer=True)
        total = self._total()
        table.add_column("turn", "all", justify="right")
        for name, amount in total.items():
            table.add_column(name, _shown(amount), justify="right")
        table.add_column("broken by", "")
        for row in self.turns:
            sizes = (row.prompt, row.reusable, row.cached, row.computed)
            table.add_row(str(row.turn), *map(_shown, sizes), _explained(row))
        return table


def _broken(last: _SentPrompt, now: _SentPrompt, messages: Sequence[Message]) -> tuple[int | None, str | None]:
    """Where the prompt stops continuing the previous one, and why."""
    if last.body.get("tools") != now.body.get("tools"):
        return None, TOOLS_CHANGED
    if last.body != now.body:
        return None, REQUEST_CHANGED
    place = _common(last.messages, now.messages)
    if place == len(last.messages):
        return None, _re_rendered(last, now)
    if place == len(now.messages):
        return place, MESSAGES_REMOVED
    if messages[place].get("content") == OMITTED:
        return place, TOOL_RESULT_OMITTED
    return place, SYSTEM_PROMPT_CHANGED if messages[place].get("role") == "system" else MESSAGE_CHANGED


def _re_rendered(last: _SentPrompt, now: _SentPrompt) -> str | None:
    if last.tokens is None or now.tokens is None:
        return None
    lost = len(last.tokens) - _common(last.tokens, now.tokens)
    return TEMPLATE_RE_RENDERED if lost > _GENERATION_PROMPT else None


def _reusable(last: _SentPrompt, now: _SentPrompt, place: int | None, reason: str | None) -> int:
    if reason in (TOOLS_CHANGED, REQUEST_CHANGED):
        return 0  # templates put the tools before everything else
    if last.tokens is not None and now.tokens is not None:
        return _common(last.tokens, now.tokens)
    if place is None:
        return min(last.prompt_tokens, now.prompt_tokens)
    same = sum(map(len, last.messages[:place])) + len(last.body.get("tools", b""))
    return min(last.prompt_tokens * same // max(last.size, 1), now.prompt_tokens)


def _lost(last: _SentPrompt, now: _SentPrompt, reusable: int, cached: int | None) -> str | None:
    """Why a server computed again what the prompt left unchanged; None if it did not, or does not report it."""
    slack = _BLOCK_SLACK + (0 if now.tokens is not None else int(reusable * _ESTIMATE_SLACK))
    if cached is None or cached >= reusable - slack:
        return None
    return EVICTED if now.tokens is not None else EVICTED_OR_RE_RENDERED


def _common(old: Sequence[Any], new: Sequence[Any]) -> int:
    for place, (was, now) in enumerate(zip(old, new, strict=False)):
        if was != now:
            return place
    return min(len(old), len(new))


def _shown(amount: int | None) -> str:
    return "-" if amount is None else f"{amount:,}"


def _explained(turn: PrefixTurn) -> str:
    where = "" if turn.broken_at is None else f" (message {turn.broken_at})"
    return f"{turn.broken_by}{where}" if turn.broken_by else ""
