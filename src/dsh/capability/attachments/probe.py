"""What the bytes of an image say of themselves, read without decoding a pixel.

The four formats are walked part by part, so that the size is known before a decoder is let loose
on the data, and so that parts that carry no pixels (places, cameras, comments, what follows the
end) are noticed. Files of so many parts or passes that no camera or program would write them are
refused: a small file could otherwise keep a decoder busy for hours, and nothing stops a decoder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = ["NotAnImage", "Probe", "probe", "sniff"]

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_PNG_PIXELS: Final = (b"IDAT", b"IEND")
_PNG_PLAIN: Final = {
    b"IHDR": 13,
    b"PLTE": 768,
    b"tRNS": 256,
    b"sRGB": 1,
    b"sBIT": 4,
    b"bKGD": 6,
    b"pHYs": 9,
}
"""What else a plain file may have, each once and no longer: more room would hold other things."""
_PNG_COLOUR: Final = (2, 6)
_PNG_PALETTE: Final = 3  # its entries have 8 bits, however few address them
_JPEG_PLAIN: Final = {0xDB, 0xC4, 0xDD, 0xDA}
_JPEG_ADOBE: Final = 0xEE
_JPEG_FRAMES: Final = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_STANDALONE: Final = {0x01, *range(0xD0, 0xD8)}
_SCAN_END: Final = re.compile(rb"\xff[^\x00\xd0-\xd7]")
"""A scan escapes its own 0xFF, and restarts are its own."""
_MOST_PARTS: Final = 1 << 16
_MOST_SCANS: Final = 100
"""Passes over one picture; encoders make about ten."""


class NotAnImage(ValueError):
    """The bytes are of none of the formats, or end too early."""


class Probe(NamedTuple):
    """The facts of an image."""

    media_type: str
    width: int
    height: int
    plain: bool
    """Nothing but one frame of 8-bit sRGB pixels is in it: no metadata, no profile."""


def sniff(data: bytes) -> str | None:
    """Return the media type that the first bytes mean."""
    if data.startswith(_PNG):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def probe(data: bytes) -> Probe:
    """Read the facts of an image.

    Raises:
        NotAnImage: it is none of the four formats, or its structure is broken.
    """
    media_type = sniff(data)
    readers = {
        "image/png": _png,
        "image/jpeg": _jpeg,
        "image/gif": _gif,
        "image/webp": _webp,
    }
    if media_type is None:
        raise NotAnImage("it has the first bytes of no known format")
    try:
        found = readers[media_type](data)
    except IndexError:
        raise NotAnImage("it ends too early") from None
    if found.width < 1 or found.height < 1:
        raise NotAnImage("it has no pixels")
    return found


def _png(data: bytes) -> Probe:
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise NotAnImage("its header is missing")
    width, height = _big(data, 16, 4), _big(data, 20, 4)
    depth, colour = data[24], data[25]
    plain = colour == _PNG_PALETTE or (depth == 8 and colour in _PNG_COLOUR)
    at, ended, parts = 8, False, 0
    seen: set[bytes] = set()
    while at + 12 <= len(data) and not ended:
        parts = _counted(parts)
        kind, size = data[at + 4 : at + 8], _big(data, at, 4)
        if kind not in _PNG_PIXELS:
            plain = plain and kind not in seen and size <= _PNG_PLAIN.get(kind, -1)
            seen.add(kind)
        ended = kind == b"IEND"
        at += 12 + size
    return Probe("image/png", width, height, plain and ended and at == len(data))


def _jpeg(data: bytes) -> Probe:
    width = height = 0
    plain, ended_at, scans = True, -1, 0
    for marker, at in _segments(data):
        scans += marker == 0xDA
        if scans > _MOST_SCANS:
            raise NotAnImage(f"it has more than {_MOST_SCANS} passes over its pixels")
        if marker == 0xD9:
            ended_at = at
        elif marker in _JPEG_FRAMES:
            height, width = _big(data, at + 3, 2), _big(data, at + 5, 2)
            plain = plain and data[at + 2] == 8 and data[at + 7] == 3
        elif marker == 0xE0:
            # A thumbnail in it is a second picture.
            plain = plain and data[at + 2 : at + 7] == b"JFIF\0" and _big(data, at, 2) == 16
        elif marker == _JPEG_ADOBE:
            plain = plain and _big(data, at, 2) == 14
        else:
            plain = plain and marker in _JPEG_PLAIN
    return Probe("image/jpeg", width, height, plain and ended_at == len(data))


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield each marker and where its length stands; the end's is the first byte after it."""
    at, parts = 2, 0
    while at + 2 <= len(data):
        parts = _counted(parts)
        if data[at] != 0xFF:
            raise NotAnImage("its structure is broken")
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
            continue
        at += 2
        if marker in _STANDALONE:
            continue
        yield marker, at
        if marker == 0xD9:
            return
        at += _big(data, at, 2)
        if marker == 0xDA:
            at = _after_scan(data, at)


def _after_scan(data: bytes, at: int) -> int:
    """Return where the next marker is."""
    found = _SCAN_END.search(data, at)
    return len(data) if found is None else found.start()


def _gif(data: bytes) -> Probe:
    return Probe("image/gif", _little(data, 6, 2), _little(data, 8, 2), plain=False)


def _webp(data: bytes) -> Probe:
    end = _little(data, 4, 4) + 8
    at, plain, parts = 12, end == len(data), 0
    width = height = 0
    seen: set[bytes] = set()
    while at + 8 <= min(end, len(data)):
        parts = _counted(parts)
        kind, body, size = data[at : at + 4], at + 8, _little(data, at + 4, 4)
        if kind == b"VP8X":
            width, height = _little(data, body + 4, 3) + 1, _little(data, body + 7, 3) + 1
            # What is not alpha is a profile, a place, a description, or motion.
            plain = plain and not data[body] & ~0x10 and size == 10
        elif not width and kind == b"VP8 ":
            width, height = _little(data, body + 6, 2) & 0x3FFF, _little(data, body + 8, 2) & 0x3FFF
        elif not width and kind == b"VP8L":
            bits = _little(data, body + 1, 4)
            width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        plain = plain and kind in (b"VP8X", b"VP8 ", b"VP8L", b"ALPH") and kind not in seen
        seen.add(kind)
        at = body + size + (size & 1)
    # Beside lossless pixels, other ones and their alpha are of no use.
    plain = plain and not (b"VP8L" in seen and seen & {b"VP8 ", b"ALPH"})
    # Alpha goes with a header that says so.
    plain = plain and (b"ALPH" not in seen or b"VP8X" in seen)
    return Probe("image/webp", width, height, plain)


def _counted(parts: int) -> int:
    if parts >= _MOST_PARTS:
        raise NotAnImage(f"it has more than {_MOST_PARTS} parts")
    return parts + 1


def _big(data: bytes, at: int, size: int) -> int:
    return _int(data, at, size, "big")


def _little(data: bytes, at: int, size: int) -> int:
    return _int(data, at, size, "little")


def _int(data: bytes, at: int, size: int, order: str) -> int:
    part = data[at : at + size]
    if len(part) < size:
        raise IndexError(at)
    return int.from_bytes(part, order)  # type: ignore[arg-type]
