"""A prefix cache of blocks as vLLM's: a prompt is rendered to text, cut into tokens, its full blocks are looked up."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

_TOKEN = re.compile(r"\s?\w{1,6}|\s|[^\w\s]")


def tokens_of(text: str) -> list[str]:
    """Short words and signs: as many tokens as real vocabularies make of English, roughly."""
    return _TOKEN.findall(text)


def render(body: Mapping[str, Any]) -> str:
    """A chat request as a ChatML template with tools in front writes it. The text of `prompt` for plain completions."""
    if "prompt" in body:
        return str(body["prompt"])
    messages = body.get("messages") or []
    head = f"<|im_start|>tools\n{json.dumps(body['tools'])}<|im_end|>\n" if body.get("tools") else ""
    text = head + "".join(_turn(message) for message in messages)
    if body.get("continue_final_message"):
        return text.removesuffix("<|im_end|>\n")
    return text + ("<|im_start|>assistant\n" if body.get("add_generation_prompt", True) else "")


def _turn(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    shown = content if isinstance(content, str) else json.dumps(content)
    calls = "".join(
        f"<tool_call>{call['function']['name']} {call['function']['arguments']}</tool_call>"
        for call in message.get("tool_calls") or []
    )
    return f"<|im_start|>{message.get('role')}\n{shown}{calls}<|im_end|>\n"


class PrefixCache:
    """Whole blocks, least recently used first out. Not for several threads at once."""

    def __init__(self, *, block_tokens: int = 16, blocks: int = 4096) -> None:
        self.block_tokens = block_tokens
        self.blocks = blocks
        self._kept: OrderedDict[int, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<PrefixCache {len(self._kept)} of {self.blocks} blocks of {self.block_tokens} tokens>"

    def lookup(self, tokens: list[str]) -> int:
        """How many tokens of the start are kept; the last one is always computed again."""
        hits = 0
        for block in self._blocks(tokens[:-1]):
            if block not in self._kept:
                break
            self._kept.move_to_end(block)
            hits += 1
        return hits * self.block_tokens

    def add(self, tokens: list[str]) -> None:
        for block in reversed(self._blocks(tokens)):  # the tail is the first to be evicted, as in vLLM
            self._kept[block] = None
            self._kept.move_to_end(block)
        while len(self._kept) > self.blocks:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        self._kept.clear()

    def _blocks(self, tokens: list[str]) -> list[int]:
        """One hash per full block, each of everything up to its end."""
        size = self.block_tokens
        chain: list[int] = []
        for end in range(size, len(tokens) + 1, size):
            chain.append(hash((chain[-1] if chain else 0, tuple(tokens[end - size : end]))))
        return chain
