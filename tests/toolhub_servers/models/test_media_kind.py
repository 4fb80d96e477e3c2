"""What a file is by its content, and how long a recording is."""

from __future__ import annotations

import pytest
from toolhub_servers.models.duration import duration_s
from toolhub_servers.models.media_types import by_extension, sniff, suffix_of

from tests.toolhub_servers.models.media_standins import jpeg, mp3, png, wav

pytestmark = pytest.mark.quick

HEADS = {
    "image/png": png(),
    "image/jpeg": jpeg(),
    "image/gif": b"GIF89a\1\0\1\0",
    "image/webp": b"RIFF\x24\0\0\0WEBPVP8 ",
    "image/bmp": b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0",
    "image/tiff": b"II*\0\x08\0\0\0",
    "video/mp4": b"\0\0\0\x20ftypisom\0\0\2\0",
    "video/quicktime": b"\0\0\0\x14ftypqt  \0\0\2\0",
    "video/x-msvideo": b"RIFF\x24\0\0\0AVI LIST",
    "video/x-matroska": b"\x1a\x45\xdf\xa3\xa3\x42\x86\x81\1\x42\x82\x88matroska",
    "video/webm": b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81\1\x42\x82\x84webm",
    "audio/wav": wav(0.1),
    "audio/mpeg": mp3(2),
    "audio/mp4": b"\0\0\0\x20ftypM4A \0\0\2\0",
    "audio/aac": b"\xff\xf1\x50\x80\x2e\x7f\xfc\x21",
    "audio/ogg": b"OggS\0\2",
    "audio/flac": b"fLaC\0\0\0\x22",
}


@pytest.mark.parametrize("mime", HEADS)
def test_the_first_bytes_tell_what_a_file_is(mime: str) -> None:
    assert sniff(HEADS[mime]) == mime


@pytest.mark.parametrize(
    "head", [b"", b"\xff", b"\xff\xff\xff\xff", b"<!doctype html>", b"BMW is a company", b"RIFF\0\0\0\0what", b"ID"]
)
def test_other_bytes_tell_nothing(head: bytes) -> None:
    assert sniff(head) is None


def test_an_mp3_with_a_tag_is_an_mp3() -> None:
    assert sniff(mp3(1, tag=b"x" * 500)) == "audio/mpeg"


@pytest.mark.parametrize(
    ("name", "mime"),
    [("a.JPG", "image/jpeg"), ("/b/a.tif", "image/tiff"), ("a.mov", "video/quicktime"), ("a.m4a", "audio/mp4")],
)
def test_a_name_tells_the_kind_by_its_extension(name: str, mime: str) -> None:
    assert by_extension(name) == mime


def test_a_name_without_a_known_extension_tells_nothing() -> None:
    assert [by_extension(name) for name in ("a", "a.txt", ".png", "png")] == [None, None, None, None]


def test_a_kind_has_the_extension_that_is_usual() -> None:
    kinds = ("image/jpeg", "audio/mpeg", "audio/wav", "video/mp4", "audio/unheard-of")
    assert [suffix_of(mime) for mime in kinds] == [".jpg", ".mp3", ".wav", ".mp4", ".mp3"]


@pytest.mark.parametrize("seconds", [0.25, 1.5, 12.0])
def test_the_length_of_a_wave_file_is_that_of_its_samples(seconds: float) -> None:
    assert duration_s(wav(seconds)) == seconds


def test_a_wave_file_that_was_written_into_a_pipe_is_as_long_as_what_is_there() -> None:
    recording = bytearray(wav(1.5))
    at = recording.index(b"data") + 4
    recording[4:8] = recording[at : at + 4] = b"\xff\xff\xff\xff"
    # The header is taken for samples: 44 bytes of 16000 in a second.
    assert duration_s(bytes(recording)) == pytest.approx(1.5, abs=0.003)


@pytest.mark.parametrize("tag", [b"", bytes(200_000), mp3(3)], ids=["none", "a picture", "like frames"])
def test_the_length_of_an_mp3_is_that_of_its_frames(tag: bytes) -> None:
    assert duration_s(mp3(100, tag=tag)) == round(100 * 1152 / 44100, 3)


def test_frames_of_a_changing_bit_rate_are_each_measured() -> None:
    slower = (b"\xff\xfb\x50\x00" + bytes(204)) * 50  # 64 kbit/s: 208 bytes
    assert duration_s(mp3(50) + slower) == round(100 * 1152 / 44100, 3)


def test_mpeg_2_has_half_the_samples_in_a_frame() -> None:
    frame = b"\xff\xf3\x80\xc0" + bytes(204)  # layer III, 64 kbit/s, 22.05 kHz: 208 bytes, 576 samples
    assert duration_s(frame * 10) == round(10 * 576 / 22050, 3)


def test_a_tag_between_frames_is_stepped_over() -> None:
    assert duration_s(mp3(10) + b"APETAGEX" + bytes(100) + mp3(10)) == round(20 * 1152 / 44100, 3)


@pytest.mark.parametrize(
    "data",
    [b"", b"fLaC" + bytes(5000), png(), b"RIFF", wav()[:30], mp3(1), b"ID3\x04\0\0\x7f\x7f\x7f\x7f", bytes(200_000)],
)
def test_what_cannot_be_measured_has_no_length(data: bytes) -> None:
    assert duration_s(data) is None
