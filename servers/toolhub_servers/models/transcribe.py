"""An MCP server that transcribes recordings and answers questions about them: MiroFlow's `tool-transcribe`.

Tools, parameters and result texts are those that the models know. What differs, on purpose:

- The event loop is never blocked and every request has a deadline. Recordings are downloaded and models are
  asked through the hub's pooled clients, with one deadline for all tries (`timeout_s`). No temporary file is written.
- A missing key gives the tool's text for a failed call, not a traceback.
- Files of the host are read only below `local_dirs`, and URLs only in the public internet, both up to the 25 MB that
  the service takes. A page that is not a recording is refused before anything is paid.
- The kind of a recording is told by its content, then by its name. It is uploaded under a name of that kind.
- `Audio duration: ... seconds` is given for WAVE and MPEG audio. For other formats the line is left out, where the
  original could say `0.0`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from anyio import to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver.tools import Tool

from toolhub.config.section import Text
from toolhub.extensions import BuiltinContext
from toolhub_servers.models.api import ModelApi, ModelError, ModelSettings, part_of_text, text_of
from toolhub_servers.models.duration import duration_s
from toolhub_servers.models.media import (
    AUDIO,
    Media,
    MediaError,
    MediaReader,
    MediaSettings,
    SandboxFile,
    UnusableMedia,
)
from toolhub_servers.serving.options import missing_options_of, validated
from toolhub_servers.serving.program import run
from toolhub_servers.serving.server import ServerContext, make_server, read_only_tool
from toolhub_servers.web.errors import WebError

EMPTY_ANSWER = "Received empty response from API"
_NOTE = """\
Note: Files from sandbox are not available. You should use local path given in the instruction. {urls}The file should \
be in a common audio format such as MP3, WAV, or M4A.
Note: YouTube video URL is not supported."""
_URLS = "\nURLs must include the proper scheme (e.g., 'https://') and be publicly accessible. "
_SYSTEM = "You are a helpful assistant specializing in audio analysis."


class TranscribeSettings(ModelSettings, MediaSettings):
    """model: the one that transcribes; question_model: the one that answers questions."""

    VARIABLES: ClassVar[Mapping[str, str]] = {"api_key": "OPENAI_API_KEY", "base_url": "OPENAI_BASE_URL"}
    REQUIRED: ClassVar[tuple[str, ...]] = ("api_key", "base_url", "model", "question_model")

    base_url: Text = "https://api.openai.com/v1"
    model: Text = "gpt-4o-transcribe"
    question_model: Text = "gpt-4o-audio-preview"


class TranscriptionFailed(Exception):
    """There is no transcription. The text is the tool's answer."""


OPTIONS = TranscribeSettings
missing_options = missing_options_of(TranscribeSettings)


def create_server(*, context: BuiltinContext | None = None, **options: Any) -> MCPServer:
    """Return the server. options: see `TranscribeSettings`. Raises ValueError for one that makes no sense."""
    settings = validated(TranscribeSettings, options)
    server_context = ServerContext(context)
    reader, api = MediaReader(server_context, settings, AUDIO), ModelApi(server_context, settings)
    answering = ModelApi(server_context, settings.model_copy(update={"model": settings.question_model}))

    async def audio_question_answering(audio_path_or_url: str, question: str) -> str:
        """Have a model listen to a recording and answer a question about it.

        Args:
            audio_path_or_url: The path of a local audio file or its URL. Paths in a sandbox and YouTube URLs do not
                work.
            question: What you want to know about the recording.

        Returns:
            The answer to the question, and how long the recording is.
        """
        failed = "[ERROR]: Audio question answering failed"
        try:
            media = await recording(reader, "audio_question_answering", failed, audio_path_or_url)
        except TranscriptionFailed as exc:
            return str(exc)
        # The service knows only these two. It accepts most other formats under the name mp3.
        sound = "wav" if media.mime == "audio/wav" else "mp3"

        def asked(data: str) -> list[Any]:
            prompt = f"Answer the following question based on the given audio information:\n\n{question}"
            heard = {"type": "input_audio", "input_audio": {"data": data, "format": sound}}
            return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": [part_of_text(prompt), heard]}]

        try:
            answer = text_of(await answering.chat("/chat/completions", asked, media.data))
            if not answer:
                raise ModelError(EMPTY_ANSWER)
        except ModelError as exc:
            return f"{failed} when calling OpenAI API: {exc}\n{_NOTE.format(urls='')}"
        seconds = await to_thread.run_sync(duration_s, media.data)
        return answer if seconds is None else f"{answer}\n\nAudio duration: {seconds} seconds"

    tools = [transcription_tool(reader, api), read_only_tool(audio_question_answering, is_titled=False)]
    return make_server("toolhub-transcribe", tools=tools, lifespan=server_context.lifespan)


def transcription_tool(reader: MediaReader, api: ModelApi) -> Tool:
    """The tool `audio_transcription`, which both servers have."""

    async def audio_transcription(audio_path_or_url: str) -> str:
        """Transcribe a recording: get the words that are spoken in it.

        Args:
            audio_path_or_url: The path of a local audio file or its URL. Paths in a sandbox and YouTube URLs do not
                work.

        Returns:
            The transcription.
        """
        failed = "[ERROR]: Audio transcription failed"
        try:
            text = await api.transcribe(await recording(reader, "audio_transcription", failed, audio_path_or_url))
        except TranscriptionFailed as exc:
            return str(exc)
        except ModelError as exc:
            return f"{failed}: {exc}\n{_NOTE.format(urls='')}"
        return text or f"{failed}: {EMPTY_ANSWER}\n{_NOTE.format(urls='')}"

    return read_only_tool(audio_transcription, is_titled=False)


async def recording(reader: MediaReader, tool: str, failed: str, path_or_url: str) -> Media:
    """Return a recording.

    Raises TranscriptionFailed with the tool's answer, which begins with `failed` or is about sandboxes.
    """
    try:
        return await reader.read(path_or_url)
    except SandboxFile as exc:
        raise TranscriptionFailed(
            f"[ERROR]: The {tool} tool cannot access to sandbox file, please use the local path provided by original "
            "instruction"
        ) from exc
    except UnusableMedia as exc:
        raise TranscriptionFailed(f"{failed}: {exc}") from exc
    except WebError as exc:
        raise TranscriptionFailed(
            f"{failed}: Failed to download audio file - {exc}.\n{_NOTE.format(urls=_URLS)}"
        ) from exc
    except (MediaError, OSError) as exc:
        raise TranscriptionFailed(f"{failed}: {exc}\n{_NOTE.format(urls='')}") from exc


def main() -> None:
    run("transcribe", "Transcribes recordings and answers questions about them.", create_server, TranscribeSettings)
