"""Images for tests, made with the library that the store uses."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

from PIL import Image, ImageDraw

from dsh.capability.attachments.service import AttachmentStore

MakeStore = Callable[..., Awaitable[AttachmentStore]]


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def shade(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """A gradient: many colours, small when compressed."""
    across = Image.linear_gradient("L").resize((width, height))
    down = across.transpose(Image.Transpose.ROTATE_180)
    image = Image.merge("RGB", (across, down, across.rotate(90).resize((width, height))))
    if mode == "RGBA":
        image.putalpha(across)
        return image
    return image.convert(mode)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """What no encoder makes small."""
    return Image.frombytes(
        "RGB", (width, height), random.Random(seed).randbytes(width * height * 3)
    )


def quarters(width: int, height: int) -> Image.Image:
    """White, with a red upper left quarter: its orientation shows."""
    image = Image.new("RGB", (width, height), "white")
    ImageDraw.Draw(image).rectangle((0, 0, width // 2 - 1, height // 2 - 1), fill="red")
    return image


def png_chunk(kind: bytes, body: bytes) -> bytes:
    check = zlib.crc32(kind + body)
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", check)


def png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    """A PNG of raw rows, each with its filter byte."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*part) for part in parts)


def deep_png(colour: int = 0) -> bytes:
    """16 bits a sample: black on the left, white on the right."""
    samples = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    row = b"\0" + struct.pack(">H", 0) * samples * 4 + struct.pack(">H", 65535) * samples * 4
    if samples in (2, 4):  # opaque
        pixel = [struct.pack(">H", value) * (samples - 1) + b"\xff\xff" for value in (0, 65535)]
        row = b"\0" + pixel[0] * 4 + pixel[1] * 4
    return png(8, 8, 16, colour, row * 8)


def bomb(side: int = 30_000) -> bytes:
    """A PNG that says it is huge."""
    return png(side, side, 8, 2, b"\0")
