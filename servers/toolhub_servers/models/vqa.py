"""An MCP server that answers questions about images and videos: MiroFlow's `tool-vqa`.

Tool, parameters and result texts are those that the models know. What differs, on purpose:

- The event loop is never blocked. Files are read and encoded in threads. The model is asked through the hub's
  pooled client, with one deadline for all tries (`timeout_s`) instead of sleeps of 10 and 20 seconds.
- A missing key gives the tool's text for a failed API call, not a traceback.
- Files of the host are read only below `local_dirs`. The kind of a file is told by its content, then by its name.
- The service still fetches URLs itself. A URL that leads to a private address is refused before the service is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mcp.server import MCPServer

from toolhub.config.section import Count, Text
from toolhub.extensions import BuiltinContext
from toolhub_servers.models.api import (
    InvalidResponse,
    ModelApi,
    ModelError,
    ModelSettings,
    part_of_image,
    part_of_text,
    text_of,
)
from toolhub_servers.models.media import VISION, Media, MediaError, MediaReader, MediaSettings, SandboxFile, is_url
from toolhub_servers.serving.options import missing_options_of, validated
from toolhub_servers.serving.program import run
from toolhub_servers.serving.server import ServerContext, make_server, read_only_tool
from toolhub_servers.web.errors import WebError

SANDBOX_FILE = (
    "[ERROR]: The visual_question_answering tool cannot access sandbox files, please use the local path provided by "
    "original instruction"
)
EMPTY_ANSWER = "[ERROR]: Received empty response from API"
_FAILED = """\
[ERROR]: Visual question answering failed during {step}: {reason}
Note: Files from sandbox are not available. You should use local path given in the instruction.
Supported image formats: jpg, png, gif, webp, bmp, tiff
Supported video formats: mp4, mov, avi, mkv, webm
URLs must be publicly accessible and start with http:// or https://"""


class VqaSettings(ModelSettings, MediaSettings):
    VARIABLES: ClassVar[Mapping[str, str]] = {"api_key": "OPENAI_API_KEY", "base_url": "OPENAI_BASE_URL"}
    REQUIRED: ClassVar[tuple[str, ...]] = ("api_key", "base_url", "model")

    base_url: Text = "https://api.openai.com/v1"
    model: Text = "gpt-4o"
    max_tokens: Count = 1024


OPTIONS = VqaSettings
missing_options = missing_options_of(VqaSettings)


def create_server(*, context: BuiltinContext | None = None, **options: Any) -> MCPServer:
    """Return the server. options: see `VqaSettings`. Raises ValueError for one that is unknown or makes no sense."""
    settings = validated(VqaSettings, options)
    server_context = ServerContext(context)
    reader, api = MediaReader(server_context, settings, VISION), ModelApi(server_context, settings)

    async def visual_question_answering(media_path_or_url: str, question: str) -> str:
        """Have a vision language model look at an image or a video and answer a question about it.

        Args:
            media_path_or_url: The path of a local file or its URL. Images can be jpg, png, gif, webp, bmp or tiff,
                videos mp4, mov, avi, mkv or webm.
            question: What you want to know about the image or video.

        Returns:
            The answer to the question.
        """
        media: Media | None = None
        try:
            if is_url(media_path_or_url):
                await reader.check_public(media_path_or_url)
            else:
                media = await reader.read(media_path_or_url)
        except SandboxFile:
            return SANDBOX_FILE
        except MediaError as exc:
            return f"[ERROR]: {exc}"
        except WebError as exc:
            return _FAILED.format(step="API call", reason=exc)
        except OSError as exc:
            return _FAILED.format(step="file processing", reason=exc)

        def asked(data: str) -> list[Any]:
            url = f"data:{media.mime};base64,{data}" if media else media_path_or_url
            return [{"role": "user", "content": [part_of_text(question), part_of_image(url)]}]

        try:
            message = await api.chat(
                "/chat/completions", asked, media.data if media else b"", max_tokens=settings.max_tokens
            )
        except InvalidResponse as exc:
            return f"[ERROR]: Failed to parse API response: {exc}"
        except ModelError as exc:
            return _FAILED.format(step="API call", reason=exc)
        return text_of(message) or EMPTY_ANSWER

    tools = [read_only_tool(visual_question_answering, is_titled=False)]
    return make_server("toolhub-vqa", tools=tools, lifespan=server_context.lifespan)


def main() -> None:
    run("vqa", "Answers questions about images and videos.", create_server, VqaSettings)
