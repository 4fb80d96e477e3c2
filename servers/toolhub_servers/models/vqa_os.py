"""An MCP server that has an open vision model answer questions about images: MiroFlow's `tool-vqa-os`.

Tool, parameters and result texts are those that the models know. `base_url` is the whole address of the endpoint, such
as http://127.0.0.1:8000/v1/chat/completions. What differs, on purpose:

- The event loop is never blocked, and every request has a deadline; the original's had none.
- A missing address or model name, and an answer of another shape, give texts, not a KeyError. An endpoint may
  need no key.
- Files of the host are read only below `local_dirs`, and URLs only in the public internet, both up to 20 MB (videos
  50 MB). The kind of a file is told by its content, then by its name, then by its host.
- `data:` URLs are passed on to the endpoint. Other texts are paths, and an error says why one cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mcp.server import MCPServer

from toolhub.extensions import BuiltinContext
from toolhub_servers.models.api import (
    InvalidResponse,
    ModelApi,
    ModelError,
    ModelSettings,
    part_of_image,
    part_of_text,
    text_of,
    without_thinking,
)
from toolhub_servers.models.media import VISION, Media, MediaError, MediaReader, MediaSettings, SandboxFile
from toolhub_servers.models.vqa import EMPTY_ANSWER, SANDBOX_FILE
from toolhub_servers.serving.options import missing_options_of, validated
from toolhub_servers.serving.program import run
from toolhub_servers.serving.server import ServerContext, make_server, read_only_tool
from toolhub_servers.web.errors import BadStatus, WebError


class VqaOsSettings(ModelSettings, MediaSettings):
    VARIABLES: ClassVar[Mapping[str, str]] = {
        "api_key": "VISION_API_KEY",
        "base_url": "VISION_BASE_URL",
        "model": "VISION_MODEL_NAME",
    }


OPTIONS = VqaOsSettings
missing_options = missing_options_of(VqaOsSettings)


def create_server(*, context: BuiltinContext | None = None, **options: Any) -> MCPServer:
    """Return the server. options: see `VqaOsSettings`. Raises ValueError for one that is unknown or makes no sense."""
    settings = validated(VqaOsSettings, options)
    server_context = ServerContext(context)
    reader, api = MediaReader(server_context, settings, VISION), ModelApi(server_context, settings)

    async def visual_question_answering(image_path_or_url: str, question: str) -> str:
        """Have a vision language model look at an image and answer a question about it.

        Args:
            image_path_or_url: The path of a local image or its URL.
            question: What you want to know about the image.

        Returns:
            The answer to the question.
        """
        media: Media | None = None
        try:
            if not image_path_or_url.startswith("data:"):
                media = await reader.read(image_path_or_url)
        except SandboxFile:
            return SANDBOX_FILE
        except BadStatus:
            return f"Failed to fetch image from URL: {image_path_or_url}"
        except (MediaError, WebError, OSError) as exc:
            return f"Error: {exc}"

        def asked(data: str) -> list[Any]:
            url = f"data:{media.mime};base64,{data}" if media else image_path_or_url
            return [{"role": "user", "content": [part_of_image(url), part_of_text(question)]}]

        try:
            message = await api.chat("", asked, media.data if media else b"")
        except InvalidResponse as exc:
            return f"Error: the answer of the model cannot be read: {exc}"
        except ModelError as exc:
            return f"Error: {exc}"
        return without_thinking(text_of(message)) or EMPTY_ANSWER

    tools = [read_only_tool(visual_question_answering, is_titled=False)]
    return make_server("toolhub-vqa-os", tools=tools, lifespan=server_context.lifespan)


def main() -> None:
    run("vqa_os", "Answers questions about images with an open vision model.", create_server, VqaOsSettings)
