"""An MCP server that has a model think about a hard question: MiroFlow's `tool-reasoning`.

Tool and parameter are those that the models know; the model is asked by Anthropic's Messages API, over plain HTTPS.
What differs, on purpose:

- The loop is never blocked (D-30), and one deadline lies round all tries (`timeout_s`).
- A missing key and every other failure are texts, not exceptions (D-32).

Thinking takes minutes. In a hub the default leaves a call of 300 seconds in time: raise `timeout_s` together with the
server's `call_timeout_s`. As a program it waits for as long as MiroFlow does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from mcp.server import MCPServer
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
    """thinking_tokens: of the max_tokens, how many may go into thinking."""

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
            raise ValueError("thinking_tokens has to be less than max_tokens, or none are left for the answer")
        return self


OPTIONS = ReasoningSettings
missing_options = missing_options_of(ReasoningSettings)


def create_server(*, context: BuiltinContext | None = None, **options: Any) -> MCPServer:
    """Return the server. options: see `ReasoningSettings`. Raises ValueError for one that makes no sense."""
    settings = validated(ReasoningSettings, options)
    server_context = ServerContext(context)
    api = ModelApi(server_context, settings, lambda key: {"x-api-key": key, "anthropic-version": _VERSION})

    async def reasoning(question: str) -> str:
        """Have a reasoning model think about a hard question: a math problem, puzzle, riddle or IQ test question.

        It needs a long chain of thought and takes long: do NOT use it for questions that are simple or obvious.

        Args:
            question: The hard question, with all that is needed to answer it.

        Returns:
            The answer to the question.
        """
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

    tools = [read_only_tool(reasoning, is_titled=False)]
    return make_server("toolhub-reasoning", tools=tools, lifespan=server_context.lifespan)


def answer_text(answer: Mapping[str, Any]) -> str:
    """The text of the last block, or its thinking if that is all there is. Raises ModelError."""
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
