"""The length of a recording: WAVE by the standard library, MPEG audio by its frame headers. Pure and blocking."""

from __future__ import annotations

import io
import wave

# ISO/IEC 11172-3 table 2.4.2.3, and its half-rate extension 13818-3; kbit/s by the index in the header.
_KBITS_V1 = {
    1: (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    2: (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
}
_KBITS_V2 = {
    1: (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    3: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_HERTZ = (44100, 48000, 32000)
# By the two version bits: MPEG 2.5, (reserved), 2, 1.
_RATE_DIVISORS = {0: 4, 2: 2, 3: 1}
_ID3_HEADER = 10
_HEADER = 4
# Between frames there may be tags and damaged bytes. A file with a longer gap cannot be measured.
_LONGEST_GAP = 64 << 10


def duration_s(data: bytes) -> float | None:
    """Return the duration in seconds, to a millisecond; None if it is unknown."""
    seconds = _wave_seconds(data) if data.startswith(b"RIFF") else _mpeg_seconds(data)
    return round(seconds, 3) if seconds else None


def _wave_seconds(data: bytes) -> float | None:
    try:
        with wave.open(io.BytesIO(data)) as recording:
            frame_bytes = recording.getsampwidth() * recording.getnchannels()
            # A recorder that writes into a pipe puts 4 GiB into the header.
            frames = min(recording.getnframes(), len(data) // frame_bytes)
            return float(frames / recording.getframerate())
    except (wave.Error, EOFError, ZeroDivisionError):
        return None


def _mpeg_seconds(data: bytes) -> float | None:
    at, seconds, gap, frames = _after_id3(data), 0.0, 0, 0
    while at + _HEADER <= len(data) and gap <= _LONGEST_GAP:
        frame = _frame(data, at)
        if frame is None:
            at, gap = at + 1, gap + 1
            continue
        size, lasts = frame
        at, seconds, gap, frames = at + size, seconds + lasts, 0, frames + 1
    # A single header may occur by chance in other data.
    return seconds if frames > 1 else None


def _after_id3(data: bytes) -> int:
    """Return where the sound begins. An ID3v2 tag gives its size in 7 bits per byte."""
    if not data.startswith(b"ID3") or len(data) < _ID3_HEADER:
        return 0
    size = 0
    for byte in data[6:_ID3_HEADER]:
        size = size << 7 | byte & 0x7F
    return _ID3_HEADER + size


def _frame(data: bytes, at: int) -> tuple[int, float] | None:
    """Return size in bytes and duration of the frame that begins at `at`; None if none does."""
    first, second, third = data[at : at + 3]
    divisor, layer = _RATE_DIVISORS.get(second >> 3 & 3), 4 - (second >> 1 & 3)
    bits, rate = third >> 4, third >> 2 & 3
    if first != 0xFF or second & 0xE0 != 0xE0 or divisor is None or layer == 4 or bits in (0, 15) or rate == 3:
        return None
    hertz, padding = _HERTZ[rate] // divisor, third >> 1 & 1
    kbits = (_KBITS_V1 if divisor == 1 else _KBITS_V2)[layer][bits]
    samples = {1: 384, 2: 1152, 3: 1152 if divisor == 1 else 576}[layer]
    slot = 4 if layer == 1 else 1
    return (samples // 8 // slot * kbits * 1000 // hertz + padding) * slot, samples / hertz
