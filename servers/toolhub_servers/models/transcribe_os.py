"""An MCP server that transcribes recordings with an open model, such as Whisper: MiroFlow's `tool-transcribe-os`.

`base_url` is that of an OpenAI-compatible service, such as http://127.0.0.1:8000/v1. For tool and texts, and for what
differs on purpose (D-30, D-32), see `transcribe`. A missing address or model name is told; a service may need no key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mcp.server import MCPServer

from toolhub.extensions import BuiltinContext
from toolhub_servers.models.api import ModelApi, ModelSettings
from toolhub_servers.models.media import AUDIO, MediaReader, MediaSettings
from toolhub_servers.models.transcribe import transcription
from toolhub_servers.serving.options import missing_options_of, validated
from toolhub_servers.serving.program import run
from toolhub_servers.serving.server import ServerContext, make_server, read_only_tool


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

    async def audio_transcription(audio_path_or_url: str) -> str:
        """Transcribe a recording: get the words that are spoken in it.

        Args:
            audio_path_or_url: The path of a local audio file or its URL. Paths in a sandbox and YouTube URLs do not
                work.

        Returns:
            The transcription.
        """
        return await transcription(reader, api, audio_path_or_url)

    tools = [read_only_tool(audio_transcription, is_titled=False)]
    return make_server("toolhub-transcribe-os", tools=tools, lifespan=server_context.lifespan)


def main() -> None:
    run("transcribe_os", "Transcribes recordings with an open model.", create_server, TranscribeOsSettings)
