"""Asking a model server: requests of one conversation, timed, each within a bound."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn
from uuid import uuid4

import anyio
import httpx2

from toolhub_agent.kv_hints.engines import EngineAdapter
from toolhub_agent.kv_hints.signals import Prompt
from toolhub_agent.llm.accumulator import usage_of
from toolhub_agent.llm.errors import error_message, sanitize
from toolhub_agent.llm.transport import session_headers
from toolhub_agent.types import Json, Message, Usage

# The largest prefill that a check asks for takes seconds on one core; a server that is that busy tells nothing else.
PATIENCE_S = 60.0
# Of one answer: a check asks for a few tokens.
LARGEST_BYTES = 4 << 20


class Unanswered(Exception):
    """A request came to nothing. status: of a refusal; None if there was no proper answer."""

    def __init__(self, what: str, status: int | None = None) -> None:
        super().__init__(what)
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    """ttft: seconds to the first piece; of the whole answer where it is not streamed."""

    usage: Usage
    ttft: float
    message: Json = field(default_factory=dict)


class ModelServer:
    """One endpoint. adapter: what it is. secrets: never shown, whatever the server repeats."""

    def __init__(
        self, http: httpx2.AsyncClient, url: str, *, model: str, adapter: EngineAdapter, secrets: Sequence[str] = ()
    ) -> None:
        self.http = http
        self.url = url
        self.model = model
        self.adapter = adapter
        self.session = f"toolhub-doctor-{uuid4().hex[:12]}"
        self._secrets = tuple(secrets)

    async def stream(self, messages: Sequence[Message], **body: Any) -> Answer:
        """One streamed token. Raises Unanswered."""
        asked = {**self._body(messages, body), "stream": True, "stream_options": {"include_usage": True}}
        with self._bounded():
            began = anyio.current_time()
            async with self.http.stream("POST", self._chat, json=asked, headers=self.headers()) as response:
                if response.status_code != 200:
                    self._refuse(response.status_code, await _start_of(response))
                return await _read_stream(response, began)

    async def whole(self, messages: Sequence[Message], **body: Any) -> Answer:
        """The same without streaming; `max_tokens` and anything else as in `body`. Raises Unanswered."""
        with self._bounded():
            began = anyio.current_time()
            answer = await self.http.post(self._chat, json=self._body(messages, body), headers=self.headers())
            if answer.status_code != 200:
                self._refuse(answer.status_code, answer.text)
            return _read_whole(answer, anyio.current_time() - began)

    async def prefetch(self, prompt: Prompt) -> None:
        """A prefill-ahead as the hints send it. Raises Unanswered."""
        request_id = f"toolhub-warm-{uuid4().hex}"
        with self._bounded():
            for is_last in (False, True):
                command = self.adapter.prefetch(self.session, prompt, request_id, self.headers())
                answer = await self.http.request(
                    command.method, command.url, json=command.body, headers=dict(command.headers)
                )
                if answer.status_code == 200:
                    return
                if is_last or not self.adapter.refused(answer.status_code, answer.text):
                    self._refuse(answer.status_code, answer.text)

    def headers(self) -> dict[str, str]:
        return session_headers(self.session)

    def prompt(self, messages: Sequence[Message], **body: Any) -> Prompt:
        return Prompt(tuple(messages), {"model": self.model, **body}, self.url)

    @property
    def _chat(self) -> str:
        return f"{self.url}/chat/completions"

    def _body(self, messages: Sequence[Message], body: Mapping[str, Any]) -> Json:
        return {"model": self.model, "messages": list(messages), "max_tokens": 1, "temperature": 0, **body}

    def _refuse(self, status: int, text: str) -> NoReturn:
        try:
            said, _code = error_message(json.loads(text))
        except ValueError:
            said = ""
        raise Unanswered(f"HTTP {status}: {sanitize(said or text, self._secrets)}".rstrip(": "), status)

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        try:
            with anyio.fail_after(PATIENCE_S):
                yield
        except TimeoutError as exc:
            raise Unanswered(f"no answer within {PATIENCE_S:.0f} s") from exc
        except (httpx2.HTTPError, httpx2.StreamError) as exc:
            raise Unanswered(sanitize(f"{type(exc).__name__}: {exc}", self._secrets)) from exc


async def _read_stream(response: httpx2.Response, began: float) -> Answer:
    usage, ttft = Usage(), None
    async for chunk in _events(response):
        if ttft is None and any(_has_begun(choice) for choice in chunk.get("choices") or ()):
            ttft = anyio.current_time() - began
        if isinstance(found := chunk.get("usage"), dict):
            usage = usage_of(found, chunk)
    if ttft is None:
        raise Unanswered("the stream had no answer in it")
    return Answer(usage, ttft)


async def _events(response: httpx2.Response) -> AsyncIterator[Json]:
    read = 0
    async for line in response.aiter_lines():
        read += len(line)
        if read > LARGEST_BYTES:
            raise Unanswered("the answer has no end")
        text = line.removeprefix("data:").strip()
        if line.startswith("data:") and text != "[DONE]":
            try:
                found = json.loads(text)
            except ValueError:
                raise Unanswered("the stream has an event that is no JSON") from None
            if isinstance(found, dict):
                yield found


def _has_begun(choice: Any) -> bool:
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta") or {}
    said = any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls"))
    return said or choice.get("finish_reason") is not None


def _read_whole(answer: httpx2.Response, seconds: float) -> Answer:
    try:
        found = answer.json()
        message = found["choices"][0]["message"]
    except (ValueError, LookupError, TypeError):
        raise Unanswered("the answer is no chat completion") from None
    usage = found.get("usage")
    return Answer(usage_of(usage, found) if isinstance(usage, dict) else Usage(), seconds, message)


async def _start_of(response: httpx2.Response) -> str:
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > 1 << 16:
            break
    return content.decode(errors="replace")
