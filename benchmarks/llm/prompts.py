"""Makes texts of a given number of tokens. Each begins with other words, so no cache has it."""

from __future__ import annotations

import itertools
import random
import uuid
from dataclasses import dataclass, field
from typing import Any

import httpx2

from benchmarks.llm.scripted_agent import Served

_WORDS = (
    "return value class import string number list file error name index result option path module function test line "
    "object method data type string buffer event request answer server client system process thread memory table"
).split()
_SAMPLE = 800


@dataclass
class Writer:
    """Writes texts. per_word: tokens of a word, measured at the server."""

    per_word: float
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def fresh(self, tokens: int) -> str:
        """Return a new text of about so many tokens. It shares no beginning with any other."""
        seed = f"{uuid.uuid4().hex[:8]} {next(self._numbers)}"
        return f"{seed}: {self.text(tokens, seed=seed)}"

    def text(self, tokens: int, *, seed: str = "the same") -> str:
        """Return the text of a seed."""
        return words(max(1, round(tokens / self.per_word)), seed)


def words(count: int, seed: str) -> str:
    chosen = random.Random(seed).choices(_WORDS, k=count)
    return " ".join(word if at % 12 else f"{word}\n" for at, word in enumerate(chosen, start=1))


async def open_writer(http: httpx2.AsyncClient, served: Served) -> Writer:
    """Measure how many tokens a word is, by one request."""
    message = {"role": "user", "content": words(_SAMPLE, "sample")}
    counted = await ask(http, served, [message])
    return Writer(counted["usage"]["prompt_tokens"] / _SAMPLE)


async def ask(http: httpx2.AsyncClient, served: Served, messages: list[dict[str, str]]) -> Any:
    """Send a request for one token, as another user would."""
    body = {"model": served.model, "messages": messages, "max_tokens": 1, "stream": False}
    headers = {"Authorization": f"Bearer {served.key}"} if served.key else {}
    answer = await http.post(f"{served.url}/chat/completions", json=body, headers=headers)
    answer.raise_for_status()
    return answer.json()
