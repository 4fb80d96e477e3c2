"""Turns of an agent whose answer is a tool call that is prescribed: it copies a page, edits it, or writes anew."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial

import httpx2
from toolhub_agent.doctor.decoding import CallTurn
from toolhub_agent.llm.accumulator import AnswerAccumulator
from toolhub_agent.tool_calls.xml_calls import XmlCallReader

from benchmarks.common.result import Json
from benchmarks.llm.scripted_agent import Served, called

COPIED, EDITED, NEW = "a page copied", "every tenth word changed", "text that is in no prompt"
KINDS = (COPIED, EDITED, NEW)
_SERVER, _TOOL = "notes", "save"
_EVERY = 10
# How the models' template ends an answer.
_END = "<|im_end|>"
# Of a call beside its text.
_CALL_TOKENS = 200
_WORDS = (
    "return value class import string number list file error name index result option path module function test line "
    "object method data type buffer event request answer server client system process thread memory table code time "
    "key user state context message size default set read write open close start end call"
).split()


@dataclass(frozen=True)
class AllowedTokens:
    """Prescribes an answer with the tokens that the tokenizer makes of it.

    A model of random weights spells a prescribed text letter by letter, so that it would share no tokens with the same
    text in the prompt. So it may only use the answer's own tokens, and letters where no word stands. words: those that
    are one token. signs: the token of each sign so far.
    """

    http: httpx2.AsyncClient
    served: Served
    words: list[str] = field(default_factory=list)
    signs: dict[str, int] = field(default_factory=dict)

    async def only(self, answer: str, text: str) -> Json:
        """The fields of a request whose answer is this call with this text."""
        # The first word stands behind a quotation mark, so it is not the same token as elsewhere.
        letters = set(answer.replace(text, "") + text.split()[0]) - {" "}
        for sign in letters - self.signs.keys():
            (self.signs[sign],) = await self.tokens(sign)
        allowed = {*await self.tokens(answer + _END), *(self.signs[sign] for sign in letters)}
        return self.served.only(answer) | {"allowed_token_ids": sorted(allowed)}

    async def tokens(self, text: str) -> list[int]:
        body = {"model": self.served.model, "prompt": text, "add_special_tokens": False}
        answer = await self.http.post(f"{self.served.root}/tokenize", json=body)
        answer.raise_for_status()
        tokens: list[int] = answer.json()["tokens"]
        return tokens


async def open_speller(http: httpx2.AsyncClient, served: Served) -> AllowedTokens:
    speller = AllowedTokens(http, served)
    speller.words.extend([word for word in _WORDS if len(await speller.tokens(f" {word}")) == 1])
    return speller


async def turn_of(speller: AllowedTokens, kind: str, name: str, words: int) -> CallTurn:
    """One turn. name: no other turn of that name has its words."""
    source = random.Random(name)
    page = source.choices(speller.words, k=words)
    said = list(page)
    if kind == EDITED:
        said = [word if at % _EVERY else source.choice(speller.words) for at, word in enumerate(page, start=1)]
    elif kind == NEW:
        said = source.choices(speller.words, k=words)
    text = " ".join(said)
    answer = called(_SERVER, _TOOL, {"text": text})
    messages = [{"role": "user", "content": f"{name}. A page says: {' '.join(page)}\nSave what belongs in the notes."}]
    body = {"messages": messages, "max_tokens": _CALL_TOKENS + 4 * words, **await speller.only(answer, text)}
    return CallTurn(body, partial(_fault_of, text))


def _fault_of(text: str, answer: AnswerAccumulator) -> str | None:
    """The agent loop's own reader decides what is a call."""
    reader = XmlCallReader()
    calls = [*reader.feed(answer.text), *reader.close().calls]
    if [(call.server, call.tool, call.problem) for call in calls] != [(_SERVER, _TOOL, None)]:
        return "the answer has no call that can be read"
    return None if calls[0].arguments == {"text": text} else "a text in it was copied wrongly"
