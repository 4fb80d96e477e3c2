"""An MCP server that has a model think about a hard question: MiroFlow's `tool-reasoning`.

Tool and parameter are those that the models know; the model is asked by Anthropic's Messages API, over plain HTTPS.
What differs, on purpose:

- The event loop is never blocked, and one deadline holds for all tries (`timeout_s`).
- A missing key and every other failure are texts, not exceptions.

Thinking takes minutes. The default of `timeout_s` ends before a hub ends the call after 300 seconds; raise it together
with the server's `call_timeout_s`. A server that runs alone waits as long as MiroFlow does.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Self

from mcp.server import MCPServer
from mcp.server.mcpserver.tools import Tool
from pydantic import model_validator

from toolhub.config.section import Count, Seconds, Text
from toolhub.extensions import BuiltinContext
from toolhub_servers.models.api import InvalidResponse, ModelApi, ModelError, ModelSettings, part_of_text, text_of
from toolhub_servers.serving.options import missing_options_of, validated
from toolhub_servers.serving.program import run
from toolhub_servers.serving.server import ServerContext, make_server, read_only_tool

_VERSION = "2023-06-01"
# MiroFlow gives a call 1200 seconds.
ALONE_TIMEOUT_S = 1100.0


class ReasoningSettings(ModelSettings):
    """thinking_tokens: how many of `max_tokens` the model may spend on thinking."""

    VARIABLES: ClassVar[Mapping[str, str]] = {"api_key": "ANTHROPIC_API_KEY", "base_url": "ANTHROPIC_BASE_URL"}
    REQUIRED: ClassVar[tuple[str, ...]] = ("api_key", "base_url", "model")

    base_url: Text = "https://api.anthropic.com"
    model: Text = "claude-3-7-sonnet-20250219"
    max_tokens: Count = 21_000
    thinking_tokens: Count = 19_000
    timeout_s: Seconds = 280

    @model_validator(mode="after")
    def _leaves_tokens(self) -> Self:
        if self.thinking_tokens >= self.max_tokens:
            raise ValueError("thinking_tokens has to be less than max_tokens, or no tokens are left for the answer")
        return self


OPTIONS = ReasoningSettings
missing_options = missing_options_of(ReasoningSettings)


def create_server(*, context: BuiltinContext | None = None, **options: Any) -> MCPServer:
    """Return the server. options: see `ReasoningSettings`. Raises ValueError for one that makes no sense."""
    settings = validated(ReasoningSettings, options)
    server_context = ServerContext(context)
    api = ModelApi(server_context, settings, lambda key: {"x-api-key": key, "anthropic-version": _VERSION})

    async def answer(question: str) -> str:
        payload = {
            "model": settings.model,
            "max_tokens": settings.max_tokens,
            "thinking": {"type": "enabled", "budget_tokens": settings.thinking_tokens},
            "messages": [{"role": "user", "content": [part_of_text(question)]}],
        }
        try:
            return answer_text(await api.post("/v1/messages", json.dumps(payload).encode()))
        except InvalidResponse as exc:
            return f"[ERROR]: Failed to parse API response: {exc}"
        except ModelError as exc:
            return f"[ERROR]: Reasoning failed: {exc}"

    return make_server("toolhub-reasoning", tools=[reasoning_tool(answer)], lifespan=server_context.lifespan)


def reasoning_tool(answer: Callable[[str], Awaitable[str]]) -> Tool:
    """The tool `reasoning`, which both servers have."""

    async def reasoning(question: str) -> str:
        """Have a reasoning model think about a hard question: a math problem, puzzle, riddle or IQ test question.

        It needs a long chain of thought and takes long: do NOT use it for questions that are simple or obvious.

        Args:
            question: The hard question, with all that is needed to answer it.

        Returns:
            The answer to the question.
        """
        return await answer(question)

    return read_only_tool(reasoning, is_titled=False)


def answer_text(answer: Mapping[str, Any]) -> str:
    """Return the text of the last block, or its thinking if it has no text. Raises ModelError."""
    blocks = answer.get("content")
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise InvalidResponse("it has no content")
    if not blocks or not (text := text_of(blocks[-1], "text") or text_of(blocks[-1], "thinking")):
        raise ModelError("Received empty response from API")
    return text


def main() -> None:
    run(
        "reasoning",
        "Has a model think about hard questions.",
        create_server,
        ReasoningSettings,
        timeout_s=ALONE_TIMEOUT_S,
    )
