"""Asking a stand-in, as the loop does."""

from __future__ import annotations

from typing import Any

from llm_stand_in.model_server import ModelServer
from toolhub_agent.llm import LlmRequest
from toolhub_agent.types import Message

from toolhub.config.llm import LlmSettings

HELLO: tuple[Message, ...] = ({"role": "user", "content": "hello"},)


def settings(*servers: ModelServer, **more: Any) -> LlmSettings:
    """The model is named, so that no request is sent for that."""
    return LlmSettings(**({"endpoints": [server.url for server in servers], "model": "m"} | more))


def ask(session: str = "task", messages: tuple[Message, ...] = HELLO, **more: Any) -> LlmRequest:
    return LlmRequest(session, messages, **more)
