"""An MCP server that transcribes recordings with an open model, such as Whisper: MiroFlow's `tool-transcribe-os`.

`base_url` is that of an OpenAI-compatible service, such as http://127.0.0.1:8000/v1. Tool, texts and what differs on
purpose are as in `transcribe`. The tool says when the address or the model's name is missing. A service
may need no key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mcp.server import MCPServer

from toolhub.extensions import BuiltinContext
from toolhub_servers.models.api import ModelApi, ModelSettings
from toolhub_servers.models.media import AUDIO, MediaReader, MediaSettings
from toolhub_servers.models.transcribe import transcription_tool
from toolhub_servers.serving.options import missing_options_of, validated
from toolhub_servers.serving.program import run
from toolhub_servers.serving.server import ServerContext, make_server


class TranscribeOsSettings(ModelSettings, MediaSettings):
    VARIABLES: ClassVar[Mapping[str, str]] = {
        "api_key": "WHISPER_API_KEY",
        "base_url": "WHISPER_BASE_URL",
        "model": "WHISPER_MODEL_NAME",
    }


OPTIONS = TranscribeOsSettings
missing_options = missing_options_of(TranscribeOsSettings)


def create_server(*, context: BuiltinContext | None = None, **options: Any) -> MCPServer:
    """Return the server. options: see `TranscribeOsSettings`. Raises ValueError for one that makes no sense."""
    settings = validated(TranscribeOsSettings, options)
    server_context = ServerContext(context)
    reader, api = MediaReader(server_context, settings, AUDIO), ModelApi(server_context, settings)

    tools = [transcription_tool(reader, api)]
    return make_server("toolhub-transcribe-os", tools=tools, lifespan=server_context.lifespan)


def main() -> None:
    run("transcribe_os", "Transcribes recordings with an open model.", create_server, TranscribeOsSettings)
