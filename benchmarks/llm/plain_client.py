"""Asks a model as a plain agent does: with the openai SDK, streaming. The answers are prescribed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai

from benchmarks.llm.scripted_agent import Served


@dataclass(frozen=True)
class PlainAnswer:
    """first_s: seconds to the first piece of text. seconds: to the last. usage: the engine's, as the SDK gives it."""

    text: str
    first_s: float
    seconds: float
    usage: Any

    @property
    def cached(self) -> int:
        """Prompt tokens from the engine's cache; 0 if it does not say."""
        details = self.usage.prompt_tokens_details
        return (details.cached_tokens or 0) if details else 0


class PlainModel:
    def __init__(self, served: Served, client: openai.AsyncOpenAI) -> None:
        self._served = served
        self._client = client

    async def ask(self, messages: list[Any], answer: str) -> PlainAnswer:
        """Ask the model. answer: the only text that the engine may write."""
        began = time.perf_counter()
        first_s = 0.0
        stream = await self._client.chat.completions.create(
            model=self._served.model,
            messages=messages,
            max_tokens=1500,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=self._served.only(answer),
        )
        text, usage = "", None
        async for chunk in stream:
            piece = (chunk.choices[0].delta.content or "") if chunk.choices else ""
            if piece and not text:
                first_s = time.perf_counter() - began
            text += piece
            usage = chunk.usage or usage
        return PlainAnswer(text, first_s, time.perf_counter() - began, usage)


@asynccontextmanager
async def open_plain_model(served: Served) -> AsyncIterator[PlainModel]:
    pool = openai.DefaultAsyncHttpxClient(trust_env=False, limits=openai.DEFAULT_CONNECTION_LIMITS)
    async with openai.AsyncOpenAI(
        base_url=served.url, api_key=served.key or "none", max_retries=0, http_client=pool
    ) as client:
        yield PlainModel(served, client)
