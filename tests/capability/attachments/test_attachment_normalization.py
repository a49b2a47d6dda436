"""What becomes of an image before it is stored."""

from __future__ import annotations

import io

import pytest
from attachment_pictures import (
    MakeStore,
    encoded,
    noise,
    opened,
    png_chunk,
    quarters,
    shade,
)
from PIL import ExifTags, Image, ImageCms, PngImagePlugin

from dsh.capability.attachments import AttachmentStore, ImageInput
from dsh.capability.attachments.probe import probe

PNG, JPEG, WEBP, GIF = "image/png", "image/jpeg", "image/webp", "image/gif"


def png_text() -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    info.add_text("Author", "SECRET-PLACE")
    return info


def exif(orientation: int) -> bytes:
    tags = Image.Exif()
    tags[ExifTags.Base.Orientation] = orientation
    tags[ExifTags.Base.ImageDescription] = "SECRET-PLACE"
    return tags.tobytes()


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (encoded(shade(300, 200)), PNG),
        (encoded(shade(300, 200, "RGBA")), PNG),
        (encoded(quarters(30, 20).quantize(16)), PNG),
        (encoded(shade(300, 200), "JPEG"), JPEG),
        (encoded(shade(300, 200), "JPEG", progressive=True), JPEG),
        (encoded(shade(300, 200), "WEBP"), WEBP),
        (encoded(shade(300, 200), "WEBP", lossless=True), WEBP),
        (encoded(shade(300, 200, "RGBA"), "WEBP"), WEBP),
    ],
    ids=range(8),
)
async def test_a_plain_image_within_bounds_is_kept_byte_for_byte(
    store: AttachmentStore, data: bytes, media_type: str
) -> None:
    ref = await store.save_image(ImageInput(data, media_type))
    width, height = opened(data).size
    assert await store.read_image(ref) == data
    assert ref == {
        "attachmentId": ref["attachmentId"],
        "mediaType": media_type,
        "bytes": len(data),
        "width": width,
        "height": height,
    }


SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
MARKED = {
    "png text": (encoded(shade(30, 20), pnginfo=png_text()), PNG),
    "png exif": (encoded(shade(30, 20), exif=exif(1)), PNG),
    "png profile": (encoded(shade(30, 20), icc_profile=SRGB), PNG),
    "png tail": (encoded(shade(30, 20)) + b"SECRET-PLACE", PNG),
    "jpeg exif": (encoded(shade(30, 20), "JPEG", exif=exif(1)), JPEG),
    "jpeg comment": (encoded(shade(30, 20), "JPEG", comment=b"SECRET-PLACE"), JPEG),
    "jpeg profile": (encoded(shade(30, 20), "JPEG", icc_profile=SRGB), JPEG),
    "jpeg tail": (encoded(shade(30, 20), "JPEG") + b"SECRET-PLACE", JPEG),
    "webp exif": (encoded(shade(30, 20), "WEBP", exif=exif(1)), WEBP),
    "webp xmp": (encoded(shade(30, 20), "WEBP", xmp=b"SECRET-PLACE"), WEBP),
    "gif comment": (encoded(quarters(30, 20), "GIF", comment=b"SECRET-PLACE"), GIF),
}


@pytest.mark.parametrize("case", MARKED, ids=str)
async def test_metadata_does_not_get_into_the_store(store: AttachmentStore, case: str) -> None:
    data, media_type = MARKED[case]
    ref = await store.save_image(ImageInput(data, media_type))
    kept = await store.read_image(ref)
    assert kept != data
    assert b"SECRET-PLACE" not in kept
    assert probe(kept).plain
    assert (ref["width"], ref["height"]) == (30, 20)
    assert "originalDimensions" not in ref


@pytest.mark.parametrize("orientation", range(1, 9))
async def test_an_image_is_turned_as_its_camera_was(
    store: AttachmentStore, orientation: int
) -> None:
    turned = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    seen = quarters(60, 40)
    taken = seen.transpose(turned[orientation]) if orientation > 1 else seen
    data = encoded(taken, "JPEG", exif=exif(orientation), quality=95)
    ref = await store.save_image(ImageInput(data, JPEG))
    kept = opened(await store.read_image(ref)).convert("RGB")
    assert (ref["width"], ref["height"]) == kept.size == (60, 40)
    red = kept.getpixel((5, 5))
    assert isinstance(red, tuple)
    assert red[0] > 200
    assert red[1] < 60
    assert kept.getpixel((50, 30)) > (200, 200, 200)


@pytest.mark.parametrize("mode", ["L", "LA", "1", "P", "CMYK", "I;16"])
async def test_other_colour_spaces_become_srgb(store: AttachmentStore, mode: str) -> None:
    picture = quarters(40, 40)
    image = picture.convert("I").convert("I;16") if mode == "I;16" else picture.convert(mode)
    form = "JPEG" if mode == "CMYK" else "PNG"
    ref = await store.save_image(ImageInput(encoded(image, form), f"image/{form.lower()}"))
    kept = opened(await store.read_image(ref))
    assert kept.mode in ("RGB", "P")
    assert ref["mediaType"] == PNG if form == "PNG" else JPEG


async def test_a_profile_is_applied_to_the_pixels(store: AttachmentStore) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    broken = encoded(quarters(20, 20), icc_profile=b"no profile")
    foreign = encoded(quarters(20, 20), icc_profile=profile)
    for data in (broken, foreign):
        ref = await store.save_image(ImageInput(data, PNG))
        kept = opened(await store.read_image(ref)).convert("RGB")
        assert kept.getpixel((2, 2)) == (255, 0, 0)


async def test_a_larger_image_is_scaled_down_and_says_so(store: AttachmentStore) -> None:
    data = encoded(shade(4096, 1024), "JPEG")
    ref = await store.save_image(ImageInput(data, JPEG))
    assert (ref["width"], ref["height"]) == (2048, 512)
    assert ref["originalDimensions"] == {"width": 4096, "height": 1024}


async def test_the_size_before_is_that_of_the_upright_image(store: AttachmentStore) -> None:
    data = encoded(shade(4096, 1024), "JPEG", exif=exif(6))
    ref = await store.save_image(ImageInput(data, JPEG))
    assert (ref["width"], ref["height"]) == (512, 2048)
    assert ref["originalDimensions"] == {"width": 1024, "height": 4096}


async def test_few_colours_stay_lossless(store: AttachmentStore) -> None:
    picture = quarters(4000, 100)
    ref = await store.save_image(ImageInput(encoded(picture, "GIF"), GIF))
    assert ref["mediaType"] in (PNG, WEBP)
    tiny = await store.save_image(ImageInput(encoded(quarters(40, 40), "GIF"), GIF))
    assert tiny["mediaType"] == PNG
    kept = opened(await store.read_image(tiny)).convert("RGB")
    assert kept.tobytes() == quarters(40, 40).tobytes()


async def test_many_colours_become_jpeg_and_with_alpha_webp(store: AttachmentStore) -> None:
    wide = [shade(3000, 300), shade(3000, 300, "RGBA")]
    refs = [await store.save_image(ImageInput(encoded(image), PNG)) for image in wide]
    assert [ref["mediaType"] for ref in refs] == [JPEG, WEBP]


async def test_alpha_that_hides_nothing_is_dropped(store: AttachmentStore) -> None:
    image = shade(3000, 300)
    image.putalpha(255)
    ref = await store.save_image(ImageInput(encoded(image), PNG))
    assert ref["mediaType"] == JPEG


async def test_an_image_shrinks_until_it_fits(make_store: MakeStore) -> None:
    store = await make_store(normalizedImageMaxBytes=20_000)
    ref = await store.save_image(ImageInput(encoded(noise(600, 400)), PNG))
    assert ref["bytes"] <= 20_000
    assert ref["originalDimensions"] == {"width": 600, "height": 400}
    assert ref["width"] / ref["height"] == pytest.approx(1.5, rel=0.02)


async def test_normalizing_what_was_normalized_changes_nothing(store: AttachmentStore) -> None:
    for data, media_type in MARKED.values():
        ref = await store.save_image(ImageInput(data, media_type))
        kept = await store.read_image(ref)
        assert await store.save_image(ImageInput(kept, ref["mediaType"])) == ref


def test_a_moving_png_is_not_plain() -> None:
    data = encoded(shade(8, 8))
    moving = data[:33] + png_chunk(b"acTL", bytes(8)) + data[33:]
    assert probe(data).plain
    assert not probe(moving).plain


def test_every_cut_of_an_image_is_told_without_a_crash() -> None:
    for form, options in (("PNG", {}), ("JPEG", {"progressive": True}), ("WEBP", {}), ("GIF", {})):
        data = encoded(shade(24, 24), form, **options)
        assert (probe(data).width, probe(data).height) == (24, 24)
        for end in range(len(data)):
            try:
                assert not probe(data[:end]).plain
            except ValueError as error:
                assert str(error)  # noqa: PT017 - most cuts are refused, and each says why
        Image.open(io.BytesIO(data)).load()
