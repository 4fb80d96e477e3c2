"""Images, videos and recordings that a model names: from configured folders of the host, or from the web.

A local file must be a regular file below a configured folder; links out of the folder are not followed. A URL is read
by the hub's client, which connects to public addresses only. Both are bounded in size and in time. Nothing is written
to a disk.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import urlsplit

import anyio
from anyio import to_thread
from pydantic import Field, field_validator

from toolhub.config.section import Section
from toolhub_servers.models.media_types import HEAD_BYTES, Accepted, by_extension, sniff
from toolhub_servers.serving.local_files import PIECE_BYTES, ReadableFolders
from toolhub_servers.serving.server import ServerContext
from toolhub_servers.web.client import open_web
from toolhub_servers.web.guard import check_all_public
from toolhub_servers.web.response import Response
from toolhub_servers.web.settings import WebSettings

MIB = 1 << 20
VISION = Accepted("image or video", "image/jpeg", {"image": 20 * MIB, "video": 50 * MIB})
# The services take 25 MB. A file .mp4 or .webm may have sound alone.
AUDIO = Accepted("audio", "audio/mpeg", {"audio": 25 * MIB, "video": 25 * MIB})
# Long enough for 50 MB from a slow network file system.
READ_TIMEOUT = 20.0
# The home of sandboxes. A model that gives such a path means a file in its sandbox.
_OF_A_SANDBOX = "home/user"
# Content types that do not tell the kind of the content.
_VAGUE = ("application/octet-stream", "binary/octet-stream", "application/ogg", "application/mp4")


class MediaSettings(Section):
    """local_dirs: folders of the host whose files may be read; without any, no local file is read.

    web: how URLs are read.
    """

    local_dirs: list[str] = Field(default_factory=list)
    web: WebSettings = WebSettings()

    @field_validator("local_dirs")
    @classmethod
    def _are_folders(cls, folders: list[str]) -> list[str]:
        ReadableFolders(folders)
        return folders


class MediaError(Exception):
    """The file or page cannot be read. The text is for the model."""


class SandboxFile(MediaError):
    """The path is in a sandbox, whose files other servers cannot see."""


class UnusableMedia(MediaError):
    """The content is empty, too big or of another kind."""


@dataclass(frozen=True, slots=True)
class Media:
    data: bytes
    mime: str


class MediaReader:
    """Reads media of the kinds in `accepted`."""

    def __init__(self, server_context: ServerContext, settings: MediaSettings, accepted: Accepted) -> None:
        self._context = server_context
        self._web = settings.web
        self._readable = ReadableFolders(settings.local_dirs)
        self._accepted = accepted

    async def read(self, path_or_url: str) -> Media:
        """Return the content.

        Raises MediaError, OSError for a file that cannot be read to its end, WebError for a URL.
        """
        return await (self._fetch(path_or_url) if is_url(path_or_url) else self._read_local(path_or_url))

    async def check_public(self, url: str) -> None:
        """Check a URL that another service will fetch.

        Raises Forbidden if it leads, or may lead, to a private address.
        """
        await check_all_public(url, self._web.allow_private)

    async def _read_local(self, path: str) -> Media:
        try:
            with anyio.fail_after(READ_TIMEOUT):
                return await to_thread.run_sync(self._read, path, abandon_on_cancel=True)
        except (FileNotFoundError, PermissionError, IsADirectoryError) as exc:
            raise _told(path, exc) from exc
        except TimeoutError as exc:
            raise OSError(f"reading {path} took more than {READ_TIMEOUT:g} seconds") from exc

    def _read(self, path: str) -> Media:
        with self._readable.open(path) as stream:
            head = stream.read(HEAD_BYTES)
            mime = self._kind(head, path, "")
            size = os.fstat(stream.fileno()).st_size
            self._check_size(mime, size)
            data = _up_to(stream, head, self._accepted.limit(mime) + 1)
        self._check_size(mime, len(data))
        return Media(data, mime)

    async def _fetch(self, url: str) -> Media:
        web = await open_web(self._context.resources, "media", self._web)
        reply = await web.get(url, max_bytes=max(self._accepted.limits.values()))
        if not reply.body:
            raise UnusableMedia("Downloaded file is empty")
        mime = self._kind(reply.body[:HEAD_BYTES], urlsplit(reply.url).path, reply.content_type)
        self._check_size(mime, _size(reply))
        return Media(reply.body, mime)

    def _kind(self, head: bytes, name: str, content_type: str) -> str:
        """Return the MIME type: by the content, then by the name, then by what the host says."""
        accepted = self._accepted
        if found := sniff(head):
            if not accepted.takes(found):
                raise UnusableMedia(f"Invalid content type '{found}'. Expected {accepted.words} file.")
            return found
        if content_type and not accepted.takes(content_type) and content_type not in _VAGUE:
            raise UnusableMedia(f"Invalid content type '{content_type}'. Expected {accepted.words} file.")
        named = by_extension(name)
        if named and accepted.takes(named):
            return named
        return content_type if accepted.takes(content_type) else accepted.default

    def _check_size(self, mime: str, size: int) -> None:
        limit = self._accepted.limit(mime)
        if size > limit:
            kind = mime.partition("/")[0]
            raise UnusableMedia(
                f"File size ({size / MIB:.2f}MB) exceeds maximum allowed size ({limit / MIB:.1f}MB) for {kind}"
            )
        if not size:
            raise UnusableMedia("File is empty")


def is_url(text: str) -> bool:
    return text.lower().startswith(("http://", "https://"))


def _up_to(stream: BinaryIO, head: bytes, limit: int) -> bytes:
    """Return the file up to `limit` bytes. head: its beginning, which was read already."""
    pieces, size = [head], len(head)
    while size < limit and (piece := stream.read(min(PIECE_BYTES, limit - size))):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _size(reply: Response) -> int:
    """Return the size of a body. If it was cut: the announced size, or at least one byte more than was read."""
    announced = reply.headers.get("content-length", "")
    told = int(announced[:15]) if reply.is_cut and announced.isascii() and announced.isdigit() else 0
    return max(told, len(reply.body) + reply.is_cut)


def _told(path: str, exc: OSError) -> MediaError:
    if _OF_A_SANDBOX in path:
        return SandboxFile(path)
    if isinstance(exc, IsADirectoryError):
        return MediaError(f"Path is not a file: {path}")
    if isinstance(exc, PermissionError) and exc.errno:
        return MediaError(f"Permission denied when reading file: {path}")
    if not path.startswith(("/", ".", "~")):  # probably an address without its scheme
        return MediaError("Invalid URL format. URLs must start with http:// or https://")
    if isinstance(exc, PermissionError):  # our own, with a reason
        return MediaError(f"Permission denied when reading file: {path}\nNote: {exc}")
    return MediaError(f"File not found: {path}")
