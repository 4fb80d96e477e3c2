"""An MCP server that has an open model think about a hard question: MiroFlow's `tool-reasoning-os`.

Tool, parameter and result texts are those that the models know. `base_url` is the whole address of the endpoint, such
as http://127.0.0.1:8000/v1/chat/completions. What differs, on purpose:

- The event loop is never blocked, and all tries together end before the call does. The original could wait for
  ten times 600 seconds. See `reasoning` for `timeout_s`.
- A missing address or model name, and an answer of another shape, give texts too. An endpoint may need no key.
- A second line says why the service is unavailable, because waiting does not help with a wrong key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mcp.server import MCPServer

from toolhub.config.section import Seconds
from toolhub.extensions import BuiltinContext
from toolhub_servers.models.api import ModelApi, ModelError, ModelSettings, text_of, without_thinking
from toolhub_servers.models.reasoning import ALONE_TIMEOUT_S, reasoning_tool
from toolhub_servers.serving.options import missing_options_of, validated
from toolhub_servers.serving.program import run
from toolhub_servers.serving.server import ServerContext, make_server

UNAVAILABLE = "Reasoning service unavailable. Please try again later."


class ReasoningOsSettings(ModelSettings):
    VARIABLES: ClassVar[Mapping[str, str]] = {
        "api_key": "REASONING_API_KEY",
        "base_url": "REASONING_BASE_URL",
        "model": "REASONING_MODEL_NAME",
    }

    timeout_s: Seconds = 280


OPTIONS = ReasoningOsSettings
missing_options = missing_options_of(ReasoningOsSettings)


def create_server(*, context: BuiltinContext | None = None, **options: Any) -> MCPServer:
    """Return the server. options: see `ReasoningOsSettings`. Raises ValueError for one that makes no sense."""
    server_context = ServerContext(context)
    api = ModelApi(server_context, validated(ReasoningOsSettings, options))

    async def answer(question: str) -> str:
        try:
            message = await api.chat("", lambda _: [{"role": "user", "content": question}], temperature=0.6, top_p=0.95)
        except ModelError as exc:
            return f"{UNAVAILABLE}\nReason: {exc}"
        return conclusion(message) or f"{UNAVAILABLE}\nReason: Received empty response from API"

    return make_server("toolhub-reasoning-os", tools=[reasoning_tool(answer)], lifespan=server_context.lifespan)


def conclusion(message: Mapping[str, Any]) -> str:
    """Return what a message says after its thinking. If it says nothing, return the thinking, which has two names."""
    answer = without_thinking(text_of(message))
    return answer or text_of(message, "reasoning_content") or text_of(message, "reasoning")


def main() -> None:
    run(
        "reasoning_os",
        "Has an open model think about hard questions.",
        create_server,
        ReasoningOsSettings,
        timeout_s=ALONE_TIMEOUT_S,
    )
