"""The kind of an image, video or recording: by its first bytes, or by its name. Pure rules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

# `sniff` needs no more than this.
HEAD_BYTES = 4096

_EXTENSIONS = {
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".bmp": "image/bmp",
    ".tiff": "image/tiff",
    ".tif": "image/tiff",
    ".mp4": "video/mp4",
    ".mov": "video/quicktime",
    ".avi": "video/x-msvideo",
    ".mkv": "video/x-matroska",
    ".webm": "video/webm",
    ".mp3": "audio/mpeg",
    ".wav": "audio/wav",
    ".m4a": "audio/mp4",
    ".aac": "audio/aac",
    ".ogg": "audio/ogg",
    ".flac": "audio/flac",
    ".wma": "audio/x-ms-wma",
}
_STARTS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"II*\0": "image/tiff",
    b"MM\0*": "image/tiff",
    b"ID3": "audio/mpeg",
    b"OggS": "audio/ogg",
    b"fLaC": "audio/flac",
    b"\x30\x26\xb2\x75\x8e\x66\xcf\x11": "audio/x-ms-wma",
}
_RIFF = {b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo", b"WEBP": "image/webp"}
# Brands of ISO media files (ISO/IEC 14496-12, `ftyp`); any other one is a video.
_BRANDS = {
    b"M4A ": "audio/mp4",
    b"M4B ": "audio/mp4",
    b"qt  ": "video/quicktime",
    b"avif": "image/avif",
    b"heic": "image/heic",
    b"mif1": "image/heif",
}
_SUFFIXES = {mime: suffix for suffix, mime in reversed(_EXTENSIONS.items())}


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a tool takes.

    limits: bytes, by the first half of the MIME type. default: the MIME type of unknown content.
    """

    words: str
    default: str
    limits: Mapping[str, int]

    def takes(self, mime: str) -> bool:
        return family(mime) in self.limits

    def limit(self, mime: str) -> int:
        return self.limits[family(mime)]


def family(mime: str) -> str:
    """`image` of image/png."""
    return mime.partition("/")[0]


def sniff(head: bytes) -> str | None:
    """Return the MIME type that the first bytes of a file show; None if it is not a known one."""
    for start, mime in _STARTS.items():
        if head.startswith(start):
            return mime
    if head.startswith(b"RIFF"):
        return _RIFF.get(head[8:12])
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12], "video/mp4")
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return "video/webm" if b"webm" in head[:64] else "video/x-matroska"
    # BMP: a text may begin with these two letters too, so the header's reserved fields must be zero.
    if head.startswith(b"BM") and len(head) >= 10 and head[6:10] == bytes(4):
        return "image/bmp"
    return _mpeg_frame(head)


def _mpeg_frame(head: bytes) -> str | None:
    """ADTS and MPEG audio begin with eleven bits set (ISO/IEC 11172-3, 13818-7); layer 0 is ADTS."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return None
    if head[1] & 0xF6 == 0xF0:
        return "audio/aac"
    is_frame = head[1] & 0x18 != 0x08 and head[1] & 0x06 and head[2] >> 4 != 0x0F and head[2] & 0x0C != 0x0C
    return "audio/mpeg" if is_frame else None


def by_extension(name: str) -> str | None:
    return _EXTENSIONS.get(os.path.splitext(name)[1].lower())


def suffix_of(mime: str) -> str:
    """Return the usual extension of a MIME type; `.mp3` if it has none."""
    return _SUFFIXES.get(mime, ".mp3")
