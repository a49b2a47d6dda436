"""Images that are made to do harm: to keep a decoder busy, to carry other things, to outlive us."""

from __future__ import annotations

import asyncio
import struct
import threading
from pathlib import Path

import pytest
from attachment_pictures import encoded, noise, png_chunk, shade
from PIL import Image

from dsh.base.signal import AbortedError
from dsh.capability.attachments import AttachmentError, AttachmentStore, ImageInput
from dsh.capability.attachments.local import AttachmentConfig, LocalAttachments
from dsh.capability.attachments.probe import NotAnImage, probe
from dsh.kernel import Context

PNG, JPEG, WEBP = "image/png", "image/jpeg", "image/webp"
PAYLOAD = b"PK\x05\x06 not a picture " * 100


def after_start(data: bytes, start: int, part: bytes) -> bytes:
    return data[:start] + part + data[start:]


def with_png_chunk(part: bytes) -> bytes:
    return after_start(encoded(shade(8, 8)), 33, part)


def with_jpeg_segment(part: bytes) -> bytes:
    return after_start(encoded(shade(8, 8), "JPEG"), 2, part)


def webp_of(parts: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", len(parts) + 4) + b"WEBP" + parts


def webp_parts() -> bytes:
    return encoded(noise(8, 8), "WEBP")[12:]


def webp_chunk(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def jpeg_of_passes(count: int) -> bytes:
    data = encoded(Image.new("L", (64, 64)), "JPEG", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * count + data[-2:]


async def test_a_jpeg_of_countless_passes_is_refused_before_it_is_decoded(
    store: AttachmentStore,
) -> None:
    await store.validate_image(ImageInput(jpeg_of_passes(20), JPEG))
    with pytest.raises(AttachmentError, match="passes over its pixels") as caught:
        await store.validate_image(ImageInput(jpeg_of_passes(200), JPEG))
    assert caught.value.code == "INVALID_IMAGE"


@pytest.mark.parametrize(
    "data",
    [
        with_jpeg_segment(b"\xff" * 100_000),
        with_jpeg_segment(b"\xff\xfe\0\2" * 100_000),
        with_png_chunk(png_chunk(b"tEXt", b"") * 100_000),
        webp_of(webp_parts() + webp_chunk(b"XXXX", b"") * 100_000),
    ],
    ids=["padding", "segments", "chunks", "riff"],
)
def test_a_file_of_countless_parts_is_refused(data: bytes) -> None:
    with pytest.raises(NotAnImage, match="parts"):
        probe(data)


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (with_png_chunk(png_chunk(b"bKGD", PAYLOAD)), PNG),
        (with_png_chunk(png_chunk(b"pHYs", b"PK\5\6     ") * 2), PNG),
        (with_jpeg_segment(b"\xff\xee" + struct.pack(">H", len(PAYLOAD) + 2) + PAYLOAD), JPEG),
        (webp_of(webp_parts() + webp_chunk(b"VP8 ", PAYLOAD)), WEBP),
        (webp_of(webp_parts() + webp_chunk(b"ALPH", PAYLOAD)), WEBP),
    ],
    ids=["background", "twice", "adobe", "pixels twice", "alpha alone"],
)
async def test_parts_without_pixels_carry_nothing_into_the_store(
    store: AttachmentStore, data: bytes, media_type: str
) -> None:
    ref = await store.save_image(ImageInput(data, media_type))
    assert b"PK\5\6" not in await store.read_image(ref)


async def test_a_frame_that_is_larger_than_the_header_says_is_not_decoded(
    store: AttachmentStore,
) -> None:
    frame = b"," + struct.pack("<HHHH", 0, 0, 5000, 5000) + b"\0\x02\x02\x44\x01\0;"
    data = b"GIF89a" + struct.pack("<HH", 8, 8) + b"\x80\0\0" + b"\0\0\0\xff\xff\xff" + frame
    assert (probe(data).width, probe(data).height) == (8, 8)
    with pytest.raises(AttachmentError, match="disagree about its size") as caught:
        await store.validate_image(ImageInput(data, "image/gif"))
    assert caught.value.code == "INVALID_IMAGE"


async def test_broken_metadata_costs_neither_the_image_nor_a_warning(
    store: AttachmentStore, recwarn: pytest.WarningsRecorder
) -> None:
    exif = b"Exif\0\0II*\0\x08\0\0\0\x05\0"
    data = with_jpeg_segment(b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif)
    ref = await store.save_image(ImageInput(data, JPEG))
    assert b"Exif" not in await store.read_image(ref)
    assert not recwarn.list


async def test_an_unloading_store_stops_its_work_and_leaves_nothing(
    root: Context, tmp_path: Path
) -> None:
    config = AttachmentConfig.model_validate({"dshHome": str(tmp_path / "home")})
    plugin = await root.plugin(LocalAttachments, config)
    store = root.require(AttachmentStore)
    image = ImageInput(encoded(noise(400, 400)), PNG)
    saving = asyncio.create_task(store.save_images([image] * 10))
    await asyncio.sleep(0)  # it has begun
    await plugin.dispose()
    with pytest.raises(AbortedError):
        await saving
    with pytest.raises(AbortedError):
        await store.save_image(image)
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith(("dsh-images", "dsh-attachments"))]
    assert not (tmp_path / "home").exists()
