"""Attachments in the home folder: row ``attachment-local``."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from dsh.base.errors import message_of
from dsh.base.json import canonical
from dsh.capability.attachments.objects import ObjectStore, RequestCache, digest_of
from dsh.capability.attachments.pixels import (
    QUALITIES,
    TRANSFORM,
    Picture,
    Target,
    check_image,
    normalized,
    projected,
)
from dsh.capability.attachments.probe import probe
from dsh.capability.attachments.service import (
    IMAGE_MEDIA_TYPES,
    AttachmentError,
    AttachmentStore,
    Dimensions,
    ImageAttachmentRef,
    ImageInput,
    ImageLimits,
    RequestImage,
    RequestImagePolicy,
    check_count,
    check_sizes,
)
from dsh.capability.attachments.workers import Lane, SharedWork, Stop
from dsh.state.documents.live import home_file

if TYPE_CHECKING:
    from dsh.kernel import Context

__all__ = ["AttachmentConfig", "LocalAttachments", "plugin"]

_log = logging.getLogger("dsh.attachments")
_MIB = 1 << 20
_LONGEST_NAME = 255
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


class AttachmentConfig(BaseModel):
    """Where images are kept, which are taken, and what becomes of them."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    dsh_home: str | None = Field(default=None, alias="dshHome")
    """The home folder, in place of the one of this run."""
    max_image_bytes: int = Field(default=20 * _MIB, ge=1, alias="maxImageBytes")
    """Bytes of one image as it is given."""
    max_images_per_message: int = Field(default=20, ge=1, alias="maxImagesPerMessage")
    """Images of one message."""
    max_message_image_bytes: int = Field(default=200 * _MIB, ge=1, alias="maxMessageImageBytes")
    """Bytes of all images of one message."""
    max_image_pixels: int = Field(default=64_000_000, ge=1, alias="maxImagePixels")
    """Pixels of one image as it is given."""
    max_image_dimension: int = Field(default=8192, ge=1, alias="maxImageDimension")
    """Pixels of its longer side."""
    normalized_image_max_dimension: int = Field(
        default=2048, ge=1, alias="normalizedImageMaxDimension"
    )
    """Pixels of the longer side as it is stored; larger images are scaled down."""
    normalized_image_max_bytes: int = Field(default=4 * _MIB, ge=1, alias="normalizedImageMaxBytes")
    """Bytes of one image as it is stored."""
    image_compression_concurrency: int = Field(
        default=2, ge=1, le=8, alias="imageCompressionConcurrency"
    )
    """Images that are decoded and encoded at the same time."""


class LocalAttachments(AttachmentStore):
    """Keeps images below ``attachments/v1`` of the home, each once.

    Nothing is made there, and no decoder is loaded, before the first image comes.
    """

    Config: ClassVar[Any] = AttachmentConfig

    def __init__(self, ctx: Context, config: AttachmentConfig | None = None) -> None:
        super().__init__(ctx, config)
        self._config = cfg = config or AttachmentConfig()
        root = home_file(ctx, None, cfg.dsh_home, "attachments") / "v1"
        self._objects = ObjectStore(root)
        self._cache = RequestCache(root)
        self._pixels = Lane("dsh-images", cfg.image_compression_concurrency)
        self._files = Lane("dsh-attachments", 2)
        self._variants: SharedWork[RequestImage] = SharedWork("attachment-variant")
        self._told = False
        ctx.defer(self._close, "attachments.close")

    @property
    def image_limits(self) -> ImageLimits:
        """See `AttachmentStore.image_limits`."""
        cfg = self._config
        return ImageLimits(
            max_image_bytes=cfg.max_image_bytes,
            max_images_per_message=cfg.max_images_per_message,
            max_message_image_bytes=cfg.max_message_image_bytes,
            max_image_pixels=cfg.max_image_pixels,
            max_image_dimension=cfg.max_image_dimension,
        )

    async def validate_image(self, image: ImageInput) -> Dimensions:
        """See `AttachmentStore.validate_image`."""
        self._check_batch([image])
        picture = await self._normalized(image)
        width, height = picture.original or (picture.width, picture.height)
        return Dimensions(width=width, height=height)

    async def save_images(self, images: Sequence[ImageInput]) -> list[ImageAttachmentRef]:
        """See `AttachmentStore.save_images`."""
        self._check_batch(images)
        # One at a time: a batch neither holds all its pixels at once nor starves other callers.
        pictures = []
        for position, image in enumerate(images, 1):
            with _naming(position, len(images)):
                pictures.append(await self._normalized(image))
        ids = await self._files.run(lambda: [self._objects.publish(each.data) for each in pictures])
        return [
            _reference(stored, picture, image.name)
            for stored, picture, image in zip(ids, pictures, images, strict=True)
        ]

    async def read_image(self, ref: Mapping[str, Any]) -> bytes:
        """See `AttachmentStore.read_image`."""
        return await self._files.run(self._objects.read, ref)

    async def read_image_request(
        self, ref: Mapping[str, Any], policy: RequestImagePolicy
    ) -> RequestImage:
        """See `AttachmentStore.read_image_request`."""
        if policy.max_pixels < 1 or policy.max_bytes < 1:
            raise _unfitting(ref, policy)
        digest_of(ref)
        key = _variant_key(ref, policy)
        # Each reference is verified on its own, so those that differ share nothing.
        facts = f"{ref['mediaType']}:{ref['bytes']}:{ref['width']}x{ref['height']}"
        return await self._variants.run(f"{key}:{facts}", lambda: self._variant(key, ref, policy))

    async def _variant(
        self, key: str, ref: Mapping[str, Any], policy: RequestImagePolicy
    ) -> RequestImage:
        if _fits(policy, ref["bytes"], ref["width"], ref["height"]):
            data = await self._files.run(self._objects.read, ref)
            picture = Picture(data, ref["mediaType"], ref["width"], ref["height"])
        else:
            kept = await self._files.run(self._cache.read, key)
            if kept is not None and _fits(policy, len(kept.data), kept.width, kept.height):
                picture = kept
            else:
                picture = await self._project(key, ref, policy)
        return RequestImage(
            variant_id=f"sha256:{key}",
            data=picture.data,
            media_type=picture.media_type,
            width=picture.width,
            height=picture.height,
        )

    async def _project(
        self, key: str, ref: Mapping[str, Any], policy: RequestImagePolicy
    ) -> Picture:
        target = Target(max_bytes=policy.max_bytes, max_pixels=policy.max_pixels)
        data = await self._files.run(self._objects.read, ref)
        facts = probe(data)
        try:
            made = await self._pixels.run_stoppable(
                lambda stop: projected(data, facts, target, stop.check)
            )
        except AttachmentError as error:
            raise AttachmentError(
                "ATTACHMENT_CORRUPT", f"{ref['attachmentId']}: {error.message}"
            ) from error
        if made is None:
            raise _unfitting(ref, policy)
        await self._keep(key, made)
        return made

    async def _keep(self, key: str, picture: Picture) -> None:
        """Write a derived image; without it, the next reader makes it again."""
        try:
            await self._files.run(self._cache.write, key, picture)
        except OSError as error:
            if not self._told:
                self._told = True
                _log.warning("images of requests cannot be cached: %s", message_of(error))

    async def _normalized(self, image: ImageInput) -> Picture:
        cfg, limits = self._config, self.image_limits
        target = Target(
            max_bytes=cfg.normalized_image_max_bytes,
            max_dimension=cfg.normalized_image_max_dimension,
        )

        def work(stop: Stop) -> Picture:
            facts = check_image(image.data, image.media_type, limits)
            return normalized(image.data, facts, target, stop.check)

        return await self._pixels.run_stoppable(work)

    def _check_batch(self, images: Sequence[ImageInput]) -> None:
        limits = self.image_limits
        check_count(limits, len(images))
        check_sizes(limits, [len(image.data) for image in images])
        for image in images:
            if image.media_type not in IMAGE_MEDIA_TYPES:
                raise AttachmentError(
                    "UNSUPPORTED_IMAGE_TYPE",
                    f"{image.media_type!r} is not supported; "
                    f"send one of {', '.join(IMAGE_MEDIA_TYPES)}",
                )

    async def _close(self) -> None:
        await self._variants.close()
        await self._pixels.close()
        await self._files.close()


plugin = LocalAttachments


def _variant_key(ref: Mapping[str, Any], policy: RequestImagePolicy) -> str:
    """Name what a request image depends on; the libraries that encode it are not part of it."""
    limits = {"maxPixels": policy.max_pixels, "maxBytes": policy.max_bytes}
    made_from = [TRANSFORM, ref["attachmentId"], limits, {"qualities": list(QUALITIES)}]
    return hashlib.sha256(canonical(made_from).encode()).hexdigest()


def _fits(policy: RequestImagePolicy, size: int, width: int, height: int) -> bool:
    return size <= policy.max_bytes and width * height <= policy.max_pixels


def _unfitting(ref: Mapping[str, Any], policy: RequestImagePolicy) -> AttachmentError:
    return AttachmentError(
        "ATTACHMENT_PROJECTION_UNSUPPORTED",
        f"attachment {ref.get('attachmentId')} cannot be made to fit into {policy.max_pixels} "
        f"pixels and {policy.max_bytes} bytes; allow larger request images",
    )


@contextmanager
def _naming(position: int, count: int) -> Iterator[None]:
    """Let an error say which image of several it means."""
    try:
        yield
    except AttachmentError as error:
        if count == 1:
            raise
        message = f"image {position} of {count}: {error.message}"
        raise AttachmentError(error.code, message) from error  # type: ignore[arg-type]


def _reference(id: str, picture: Picture, name: str | None) -> ImageAttachmentRef:
    ref = ImageAttachmentRef(
        attachmentId=id,
        mediaType=picture.media_type,
        bytes=len(picture.data),
        width=picture.width,
        height=picture.height,
    )
    if shown := _file_name(name):
        ref["name"] = shown
    if picture.original is not None:
        width, height = picture.original
        ref["originalDimensions"] = Dimensions(width=width, height=height)
    return ref


def _file_name(name: str | None) -> str:
    """Return the last part of a path of any system, fit to be logged and shown."""
    last = re.split(r"[/\\]", name or "")[-1]
    clean = _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", _CONTROLS.sub("", last)).strip()
    return "" if clean in (".", "..") else clean[:_LONGEST_NAME]
