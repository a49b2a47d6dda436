"""Which images are taken, and what the refusal of others says."""

from __future__ import annotations

import asyncio
import base64
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from attachment_pictures import MakeStore, bomb, deep_png, encoded, noise, opened, quarters, shade

from dsh.base.errors import DshError
from dsh.capability.attachments import (
    AttachmentError,
    AttachmentStore,
    ImageInput,
    admit_encoded_images,
    is_image_admission_error,
)
from dsh.capability.attachments.service import ADMISSION_CODES

PNG, JPEG, WEBP, GIF = "image/png", "image/jpeg", "image/webp", "image/gif"


def files(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path.is_file()] if home.exists() else []


async def refusal(store: AttachmentStore, *images: ImageInput) -> str:
    with pytest.raises(AttachmentError) as caught:
        await store.save_images(images)
    assert is_image_admission_error(caught.value)
    return caught.value.code


async def test_nothing_is_made_before_the_first_image(
    store: AttachmentStore, attachments_home: Path
) -> None:
    assert store.image_limits.wire()["maxImagesPerMessage"] == 20
    assert files(attachments_home) == []


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"maxImagesPerMessage": 1}, "TOO_MANY_IMAGES"),
        ({"maxMessageImageBytes": 100}, "IMAGES_TOO_LARGE"),
        ({"maxImageBytes": 100}, "IMAGE_TOO_LARGE"),
        ({"maxImagePixels": 1000}, "IMAGE_TOO_MANY_PIXELS"),
        ({"maxImageDimension": 39}, "IMAGE_DIMENSION_TOO_LARGE"),
    ],
)
async def test_each_limit_has_its_code_and_nothing_is_written(
    make_store: MakeStore, attachments_home: Path, limits: dict[str, int], code: str
) -> None:
    store = await make_store(**limits)
    image = ImageInput(encoded(shade(40, 40)), PNG)
    assert await refusal(store, image, image) == code
    assert files(attachments_home) == []


@pytest.mark.parametrize(
    ("image", "code"),
    [
        (ImageInput(b"<svg/>", "image/svg+xml"), "UNSUPPORTED_IMAGE_TYPE"),
        (ImageInput(encoded(shade(8, 8)), JPEG), "IMAGE_TYPE_MISMATCH"),
        (ImageInput(b"", PNG), "INVALID_IMAGE"),
        (ImageInput(b"no picture", PNG), "INVALID_IMAGE"),
        (ImageInput(encoded(shade(64, 64))[:-200], PNG), "INVALID_IMAGE"),
        (ImageInput(encoded(shade(64, 64), "JPEG")[:-200], JPEG), "INVALID_IMAGE"),
        (ImageInput(encoded(noise(64, 64), "WEBP")[:-200], WEBP), "INVALID_IMAGE"),
        (ImageInput(encoded(noise(64, 64), "GIF")[:200], GIF), "INVALID_IMAGE"),
        (ImageInput(encoded(shade(8, 8))[:20], PNG), "INVALID_IMAGE"),
    ],
)
async def test_what_is_no_image_of_its_type_is_refused_by_code(
    store: AttachmentStore, attachments_home: Path, image: ImageInput, code: str
) -> None:
    assert await refusal(store, image) == code
    assert files(attachments_home) == []


async def test_one_bad_image_keeps_the_whole_batch_out(
    store: AttachmentStore, attachments_home: Path
) -> None:
    good = ImageInput(encoded(shade(8, 8)), PNG)
    with pytest.raises(AttachmentError, match=r"^image 2 of 3: ") as caught:
        await store.save_images([good, ImageInput(b"bad", PNG), good])
    assert caught.value.code == "INVALID_IMAGE"
    assert files(attachments_home) == []


async def test_a_decompression_bomb_is_refused_before_a_pixel_is_decoded(
    make_store: MakeStore,
) -> None:
    store = await make_store(maxImageDimension=100_000)
    await store.validate_image(ImageInput(encoded(shade(8, 8)), PNG))  # the decoder is loaded
    tracemalloc.start()
    try:
        assert await refusal(store, ImageInput(bomb(), PNG)) == "IMAGE_TOO_MANY_PIXELS"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


async def test_limits_above_those_of_the_decoder_end_in_the_same_code(
    make_store: MakeStore,
) -> None:
    store = await make_store(maxImageDimension=10**6, maxImagePixels=10**12)
    assert await refusal(store, ImageInput(bomb(), PNG)) == "IMAGE_TOO_MANY_PIXELS"


async def test_the_frames_of_an_animation_are_not_decoded_but_the_first(
    store: AttachmentStore,
) -> None:
    frames = [quarters(40, 40), *(noise(40, 40, seed) for seed in range(30))]
    moving = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    ref = await store.save_image(ImageInput(moving, GIF))
    still = opened(await store.read_image(ref))
    assert ref["mediaType"] == PNG
    assert getattr(still, "n_frames", 1) == 1
    assert still.convert("RGB").getpixel((2, 2)) == (255, 0, 0)


async def test_an_image_that_fits_in_no_form_is_refused(make_store: MakeStore) -> None:
    store = await make_store(normalizedImageMaxBytes=10)
    assert await refusal(store, ImageInput(encoded(shade(64, 64)), PNG)) == "IMAGE_TOO_LARGE"


async def test_validation_tells_the_size_and_stores_nothing(
    store: AttachmentStore, attachments_home: Path
) -> None:
    facts = await store.validate_image(ImageInput(encoded(shade(3000, 100)), PNG))
    assert facts == {"width": 3000, "height": 100}
    assert files(attachments_home) == []


async def test_the_code_decides_what_the_sender_can_put_right() -> None:
    assert is_image_admission_error(DshError("from another package", code="INVALID_IMAGE"))
    assert not is_image_admission_error(AttachmentError("ATTACHMENT_CORRUPT", "damaged"))
    assert not is_image_admission_error(ValueError("INVALID_IMAGE"))
    assert len(ADMISSION_CODES) == 9


def wire(data: bytes, **fields: Any) -> Any:
    return {"mediaType": PNG, "data": base64.b64encode(data).decode(), **fields}


async def test_images_of_a_wire_are_stored_in_their_order(store: AttachmentStore) -> None:
    sizes = [(8, 9), (10, 11), (12, 13)]
    batch = [wire(encoded(shade(*size)), name=f"{size[0]}.png") for size in sizes]
    refs = await admit_encoded_images(store, batch)
    assert [(ref["width"], ref["height"]) for ref in refs] == sizes
    assert [ref["name"] for ref in refs] == ["8.png", "10.png", "12.png"]


@pytest.mark.parametrize("text", ["", "not base64!", "AAA", "AB==", "AA==\n", "ä", "\ud800"])
async def test_other_spellings_of_base64_are_refused(store: AttachmentStore, text: str) -> None:
    with pytest.raises(AttachmentError) as caught:
        await admit_encoded_images(store, [{"mediaType": PNG, "data": text}])
    assert caught.value.code == "INVALID_IMAGE_BASE64"


async def test_too_much_base64_is_refused_before_it_is_decoded(make_store: MakeStore) -> None:
    store = await make_store(maxImageBytes=100, maxMessageImageBytes=150)
    long = {"mediaType": PNG, "data": "!" * 1000}
    with pytest.raises(AttachmentError) as caught:
        await admit_encoded_images(store, [long])
    assert caught.value.code == "IMAGES_TOO_LARGE"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("/home/me/cat.png", "cat.png"),
        ("C:\\pictures\\cat.png", "cat.png"),
        ("a\x00b\x1b\x9f.png", "ab.png"),
        ("x" * 300, "x" * 255),
        ("folder/", None),
        ("..", None),
        ("\ud800.png", "\N{REPLACEMENT CHARACTER}.png"),
        (None, None),
    ],
)
async def test_a_name_is_the_last_part_of_a_path_fit_to_be_shown(
    store: AttachmentStore, given: str | None, kept: str | None
) -> None:
    ref = await store.save_image(ImageInput(encoded(shade(8, 8)), PNG, given))
    assert ref.get("name") == kept


async def test_a_caller_that_is_cancelled_leaves_nothing_behind(
    store: AttachmentStore, attachments_home: Path
) -> None:
    image = ImageInput(encoded(noise(1500, 1500)), PNG)
    saving = asyncio.create_task(store.save_image(image))
    await asyncio.sleep(0)
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert files(attachments_home) == []


@pytest.mark.parametrize("colour", [0, 2, 4, 6])
async def test_sixteen_bits_a_sample_become_eight(store: AttachmentStore, colour: int) -> None:
    ref = await store.save_image(ImageInput(deep_png(colour), PNG))
    kept = opened(await store.read_image(ref)).convert("RGB")
    assert kept.getpixel((0, 0)) == (0, 0, 0)
    assert kept.getpixel((7, 7)) == (255, 255, 255)
