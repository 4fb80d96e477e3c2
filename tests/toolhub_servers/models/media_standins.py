"""Stand-ins on loopback for the services that look, listen and think, and small files of every kind.

One service answers chat completions, transcriptions and Anthropic messages, records what it is asked, and fails on
request. It serves files, too.
"""

from __future__ import annotations

import io
import json
import struct
import wave
import zlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.policy import HTTP
from typing import Any

import anyio
from loopback_app import serve_app
from mcp import Client
from mcp.types import TextContent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

PATIENCE_S = 60.0
KEY = "sk-0123456789-the-key"


@dataclass
class Asked:
    """One request: its path, headers and body, as JSON or as the fields of a form."""

    path: str
    headers: dict[str, str]
    json: Any = None
    form: dict[str, Any] = field(default_factory=dict)


class Service:
    """answer: the text of every answer that is not staged. staged: answers that come first, in order."""

    def __init__(self) -> None:
        self.url = ""
        self.go_on = anyio.Event()
        """Answers wait for it. Set at first."""
        self.forget()
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/audio/transcriptions", self._transcribe, methods=["POST"]),
            Route("/v1/messages", self._message, methods=["POST"]),
            Route("/files/{name:path}", self._file),
        ]
        self.app = Starlette(routes=routes)

    def forget(self) -> None:
        """Be as new. Requests that wait are answered."""
        self.asked: list[Asked] = []
        self.answer: Any = "a red square"
        self.staged: deque[Response] = deque()
        self.files: dict[str, Response] = {}
        self.go_on.set()
        self._arrived = anyio.Event()

    async def wait_asked(self, count: int) -> None:
        """Wait until so many requests have come in."""
        while len(self.asked) < count:
            await self._arrived.wait()

    def _record(self, asked: Asked) -> None:
        self.asked.append(asked)
        self._arrived.set()
        self._arrived = anyio.Event()

    @property
    def place(self) -> str:
        return self.url.removeprefix("http://")

    def stage(self, *answers: Response) -> None:
        self.staged.extend(answers)

    def offer(
        self, name: str, content: bytes, content_type: str = "application/octet-stream", status: int = 200
    ) -> str:
        """Serve a file, and return its URL."""
        self.files[name] = Response(content, status, media_type=content_type)
        return f"{self.url}/files/{name}"

    async def _file(self, request: Request) -> Response:
        self._record(Asked(request.url.path, dict(request.headers)))
        return self.files.get(request.path_params["name"]) or Response("not here", 404)

    async def _chat(self, request: Request) -> Response:
        message = self.answer if isinstance(self.answer, dict) else {"role": "assistant", "content": self.answer}
        return await self._answer(request, {"choices": [{"index": 0, "message": message}]})

    async def _message(self, request: Request) -> Response:
        blocks = self.answer if isinstance(self.answer, list) else [{"type": "text", "text": self.answer}]
        return await self._answer(request, {"type": "message", "content": blocks})

    async def _transcribe(self, request: Request) -> Response:
        return await self._answer(request, {"text": self.answer})

    async def _answer(self, request: Request, answer: dict[str, Any]) -> Response:
        asked = Asked(request.url.path, dict(request.headers))
        body = await request.body()
        if asked.headers["content-type"] == "application/json":
            asked.json = json.loads(body)
        else:
            asked.form = form_of(asked.headers["content-type"], body)
        self._record(asked)
        await self.go_on.wait()
        return self.staged.popleft() if self.staged else JSONResponse(answer)


def form_of(content_type: str, body: bytes) -> dict[str, Any]:
    """The fields of a form; a file as (its name, its type, its content)."""
    form = message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body, policy=HTTP)
    fields: dict[str, Any] = {}
    for part in form.iter_parts():
        content = part.get_payload(decode=True)
        name = part.get_param("name", header="content-disposition")
        assert isinstance(content, bytes) and isinstance(name, str)
        file = part.get_filename()
        fields[name] = (file, part.get_content_type(), content) if file else content.decode()
    return fields


@asynccontextmanager
async def serve_standin() -> AsyncIterator[Service]:
    service = Service()
    async with serve_app(service.app) as service.url:
        try:
            yield service
        finally:
            service.go_on.set()


async def answer(client: Client, tool: str, **arguments: Any) -> str:
    """The text of a call. Whatever goes wrong, these tools answer with a text and not with an error."""
    with anyio.fail_after(PATIENCE_S):
        result = await client.call_tool(tool, arguments)
    (block,) = result.content
    assert isinstance(block, TextContent)
    assert not result.is_error, block.text
    return block.text


def png() -> bytes:
    """One red pixel."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0\xff\0\0")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def jpeg() -> bytes:
    """Eight by eight grey pixels: one block, of which both tables have one code only."""

    def segment(marker: int, content: bytes) -> bytes:
        return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content

    def one_code(table: int) -> bytes:
        return segment(0xC4, bytes([table, 1, *[0] * 15, 0]))

    frame = segment(0xC0, struct.pack(">BHHB", 8, 8, 8, 1) + bytes([1, 0x11, 0]))
    scan = segment(0xDA, bytes([1, 1, 0x00, 0, 63, 0])) + b"\x3f"
    return (
        b"\xff\xd8" + segment(0xDB, bytes([0, *[1] * 64])) + frame + one_code(0) + one_code(0x10) + scan + b"\xff\xd9"
    )


def wav(seconds: float = 1.5, rate: int = 8000) -> bytes:
    """Silence, 16 bits, mono."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as recording:
        recording.setparams((1, 2, rate, 0, "NONE", "not compressed"))
        recording.writeframes(bytes(2 * int(seconds * rate)))
    return stream.getvalue()


def mp3(frames: int = 100, *, tag: bytes = b"") -> bytes:
    """Silence, MPEG 1 layer III, 128 kbit/s, 44.1 kHz: 1152 samples in 417 bytes, each frame. tag: of ID3."""
    size = len(tag)
    id3 = b"ID3\x04\0\0" + bytes([size >> 21 & 127, size >> 14 & 127, size >> 7 & 127, size & 127]) + tag
    return (id3 if tag else b"") + (b"\xff\xfb\x90\x00" + bytes(413)) * frames
