"""Stand-ins for Jina Reader and for an OpenAI-compatible endpoint: they answer, misbehave as told, and record."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response

JINA_KEY = "jina-test-key"
CHAT_KEY = "chat-test-key"
OVERFLOW = "Requested token count exceeds the model's maximum context length of 4096 tokens."


class Slow:
    """An answer that comes when the site is told to let go of it."""


SLOW = Slow()
Answer = Response | Slow


@dataclass
class Script:
    """Answers to give next, in order; afterwards the usual one is given."""

    usual: Callable[..., Response]
    answers: deque[Answer] = field(default_factory=deque)

    def then(self, *answers: Answer) -> None:
        self.answers.extend(answers)

    def next(self, *about: Any) -> Answer:
        return self.answers.popleft() if self.answers else self.usual(*about)


def jina_page(url: str) -> Response:
    """As Jina Reader writes it: a head of three lines and the text."""
    head = f"Title: Jina's page\n\nURL Source: {url}\n\nMarkdown Content:\n"
    return PlainTextResponse(f"{head}# Jina\n\nRead by [Jina](https://jina.ai/) for you.")


def out_of_balance(status: int = 402) -> Response:
    told = {"data": None, "code": 402, "name": "InsufficientBalanceError", "status": 40203, "message": "Recharge."}
    return JSONResponse(told, status_code=status)


def completion(content: str | None = "The answer is 42.", **more: Any) -> Response:
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 100, "completion_tokens": 23, "total_tokens": 123}
    return JSONResponse({"object": "chat.completion", "choices": [choice], "usage": usage, **more})


def overflow(status: int = 400) -> Response:
    return JSONResponse({"object": "error", "message": OVERFLOW, "code": status}, status_code=status)


def circular() -> Response:
    """An answer whose end is repeated over and over."""
    return completion("It begins well. " + "and then the same thing happened once more to everybody there, " * 20)


def status(code: int, text: str = "", **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return PlainTextResponse(text or f"status {code}", code, headers=named)


def usual_completion(body: bytes) -> Response:
    """A request without a model or messages is refused as real endpoints refuse it."""
    asked = json.loads(body)
    if not asked.get("model") or not asked.get("messages"):
        return JSONResponse({"error": {"message": "model and messages are required"}}, status_code=400)
    return completion()
