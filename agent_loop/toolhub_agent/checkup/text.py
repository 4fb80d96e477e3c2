"""Prompts that no other has begun with, so that what is cached of them was computed for them."""

from __future__ import annotations

from uuid import uuid4

# About 3,000 tokens in most vocabularies.
SENTENCES = 230
# A sentence is 10 to 20 tokens; a prompt takes at most half of the context.
_SENTENCE_TOKENS = 20


def sentences_for(context_tokens: int | None) -> int:
    return SENTENCES if context_tokens is None else max(8, min(SENTENCES, context_tokens // (2 * _SENTENCE_TOKENS)))


def long_text(sentences: int) -> str:
    lines = (f"Entry {number}: the heron stood by the river and waited for rain." for number in range(sentences))
    return f"Notes {uuid4().hex}.\n" + "\n".join(lines)
