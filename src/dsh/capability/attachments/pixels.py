"""Decoding, cleaning and scaling of images. Everything here blocks; Pillow loads at first use."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from dsh.base.values import value
from dsh.capability.attachments.probe import NotAnImage, Probe, probe
from dsh.capability.attachments.service import AttachmentError, ImageLimits

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["TRANSFORM", "Picture", "Target", "check_image", "normalized", "projected"]

TRANSFORM: Final = 1
"""Version of what is done to pixels; another one makes other request images."""

QUALITIES: Final = (85, 80, 75)
"""What the lossy encoders are asked for, in turn."""

_FEW_COLOURS: Final = 256
_SMALLEST_STEP: Final = 0.9
"""How much an image that does not fit shrinks at least, each time."""

_FORMATS: Final = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/webp": "WEBP",
    "image/gif": "GIF",
}

Check = Callable[[], object]
"""Called between steps; raises when nobody waits for the result any more."""


@value
class Picture:
    """An encoded image and its size."""

    data: bytes
    media_type: str
    width: int
    height: int
    original: tuple[int, int] | None = None
    """The size before it was scaled down."""


@value(kw_only=True)
class Target:
    """What a picture has to fit into."""

    max_bytes: int
    max_dimension: int | None = None
    max_pixels: int | None = None

    def scale(self, width: int, height: int) -> float:
        """Return by how much a size must shrink; 1 when it fits."""
        factor = 1.0
        if self.max_dimension is not None:
            factor = min(factor, self.max_dimension / max(width, height))
        if self.max_pixels is not None:
            factor = min(factor, math.sqrt(self.max_pixels / (width * height)))
        return factor


def check_image(data: bytes, media_type: str, limits: ImageLimits) -> Probe:
    """Refuse an image by what its header says; no pixel is decoded.

    Raises:
        AttachmentError: an admission code.
    """
    try:
        facts = probe(data)
    except NotAnImage as error:
        raise AttachmentError("INVALID_IMAGE", f"the data is not an image: {error}") from error
    if facts.media_type != media_type:
        raise AttachmentError(
            "IMAGE_TYPE_MISMATCH",
            f"the image is said to be {media_type}, and is {facts.media_type}",
        )
    size = f"{facts.width}x{facts.height}"
    if max(facts.width, facts.height) > limits.max_image_dimension:
        most = limits.max_image_dimension
        raise AttachmentError(
            "IMAGE_DIMENSION_TOO_LARGE", f"the image has {size} pixels; a side may have {most}"
        )
    if facts.width * facts.height > limits.max_image_pixels:
        most = limits.max_image_pixels
        raise AttachmentError(
            "IMAGE_TOO_MANY_PIXELS", f"the image has {size} pixels; it may have {most} in all"
        )
    return facts


def normalized(data: bytes, facts: Probe, target: Target, check: Check) -> Picture:
    """Decode an image, and return it upright, in sRGB, without metadata, and small enough.

    Bytes that are so already are returned as they are.

    Raises:
        AttachmentError: ``INVALID_IMAGE`` or ``IMAGE_TOO_MANY_PIXELS`` when it cannot be
            decoded; ``IMAGE_TOO_LARGE`` when no form of it fits.
    """
    image = _decoded(data, facts)
    check()
    fits = len(data) <= target.max_bytes and target.scale(facts.width, facts.height) >= 1
    if facts.plain and fits:
        return Picture(data, facts.media_type, facts.width, facts.height)
    try:
        upright = _clean(image)
    except Exception as error:
        raise _undecodable(error) from error
    fitted = _fitted(upright, target, check)
    if fitted is None:
        raise AttachmentError(
            "IMAGE_TOO_LARGE", f"no form of the image fits into {target.max_bytes} bytes"
        )
    return fitted


def projected(data: bytes, facts: Probe, target: Target, check: Check) -> Picture | None:
    """Return a stored image in a size for a request; None when no form of it fits.

    Raises:
        AttachmentError: ``INVALID_IMAGE`` when it cannot be decoded.
    """
    if len(data) <= target.max_bytes and target.scale(facts.width, facts.height) >= 1:
        return Picture(data, facts.media_type, facts.width, facts.height)
    image = _clean(_decoded(data, facts))
    check()
    return _fitted(image, target, check)


def _decoded(data: bytes, facts: Probe) -> Image:
    """Decode the first frame; only the decoder of the format that was probed sees the data."""
    from PIL import Image

    # What it warns of is either refused by us or of no use to who sent the image.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    try:
        image = Image.open(io.BytesIO(data), formats=[_FORMATS[facts.media_type]])
        _agree(image.size, (facts.width, facts.height))
        image.load()
    except Image.DecompressionBombError as error:
        raise AttachmentError(
            "IMAGE_TOO_MANY_PIXELS", "the image has more pixels than the decoder takes"
        ) from error
    except Exception as error:  # decoders raise whatever broken data leads them to
        raise _undecodable(error) from error
    return image


def _agree(decoded: tuple[int, int], probed: tuple[int, int]) -> None:
    if decoded != probed:
        raise NotAnImage("its parts disagree about its size")


def _undecodable(error: Exception) -> AttachmentError:
    return AttachmentError(
        "INVALID_IMAGE", f"the image cannot be decoded: {error or type(error).__name__}"
    )


def _clean(image: Image) -> Image:
    """Return the pixels alone: upright, in 8-bit sRGB, with alpha only where it matters."""
    from PIL import ImageOps

    profile = image.info.get("icc_profile")
    ImageOps.exif_transpose(image, in_place=True)  # a copy of a large image is large
    if image.mode.startswith("I"):
        # Deep greys: keep the upper 8 of 16 bits; Pillow itself would cut off at 255.
        image = image.convert("I").point(lambda deep: deep * (1 / 256)).convert("L")
    elif profile:
        image = _in_srgb(image, profile)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        alpha: Any = image.getchannel("A").getextrema()
        bare = image if alpha[0] < 255 else image.convert("RGB")
    else:
        bare = image if image.mode == "RGB" else image.convert("RGB")
    # Encoders write what they find here: comments, resolutions, places.
    bare.info = {}
    return bare


def _in_srgb(image: Image, profile: bytes) -> Image:
    """Apply a colour profile; one that is broken, or for other colours, is ignored."""
    from PIL import ImageCms

    if image.mode not in ("RGB", "RGBA", "CMYK", "L"):
        return image
    output = "RGBA" if image.mode == "RGBA" else "RGB"
    try:
        source = ImageCms.getOpenProfile(io.BytesIO(profile))
        srgb = ImageCms.createProfile("sRGB")
        changed = ImageCms.profileToProfile(image, source, srgb, outputMode=output)
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return image
    return image if changed is None else changed


def _fitted(image: Image, target: Target, check: Check) -> Picture | None:
    original = image.size
    image = _scaled(image, target.scale(*image.size))
    while True:
        smallest = 0
        for data, media_type in _encodings(image):
            check()
            if len(data) <= target.max_bytes:
                before = original if image.size != original else None
                return Picture(data, media_type, *image.size, before)
            smallest = min(smallest or len(data), len(data))
        if image.size == (1, 1):
            return None
        image = _scaled(image, min(_SMALLEST_STEP, math.sqrt(target.max_bytes / smallest)))


def _scaled(image: Image, factor: float) -> Image:
    from PIL.Image import Resampling

    if factor >= 1:
        return image
    width, height = image.size
    size = max(1, int(width * factor)), max(1, int(height * factor))
    return image.resize(size, Resampling.LANCZOS, reducing_gap=3.0)


def _encodings(image: Image) -> Iterator[tuple[bytes, str]]:
    """Yield the image in the forms that suit it, best first."""
    if image.getcolors(_FEW_COLOURS) is not None:
        yield _encode(image, "PNG", optimize=True), "image/png"
        yield _encode(image, "WEBP", lossless=True, exact=True), "image/webp"
    elif image.mode == "RGBA":
        for quality in QUALITIES:
            yield _encode(image, "WEBP", quality=quality), "image/webp"
    else:
        for quality in QUALITIES:
            yield _encode(image, "JPEG", quality=quality, optimize=True), "image/jpeg"


def _encode(image: Image, form: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()
