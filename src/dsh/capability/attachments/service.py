"""The attachment seam: ``ctx.attachments``, what it takes, and why it refuses."""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Literal,
    NewType,
    NotRequired,
    TypedDict,
    get_args,
)

from dsh.base.errors import DshError
from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    from typing_extensions import TypeIs

__all__ = [
    "ADMISSION_CODES",
    "IMAGE_MEDIA_TYPES",
    "AdmissionCode",
    "AttachmentError",
    "AttachmentId",
    "AttachmentStore",
    "Dimensions",
    "EncodedImage",
    "ImageAttachmentRef",
    "ImageInput",
    "ImageLimits",
    "RequestImage",
    "RequestImagePolicy",
    "StorageCode",
    "admit_encoded_images",
    "check_count",
    "check_sizes",
    "is_image_admission_error",
]

AttachmentId = NewType("AttachmentId", str)
"""Names the bytes of an attachment; what it is made of is for its store alone."""

IMAGE_MEDIA_TYPES: Final = ("image/png", "image/jpeg", "image/webp", "image/gif")
"""The kinds of images that a message may carry."""

AdmissionCode = Literal[
    "TOO_MANY_IMAGES",
    "IMAGES_TOO_LARGE",
    "UNSUPPORTED_IMAGE_TYPE",
    "INVALID_IMAGE_BASE64",
    "INVALID_IMAGE",
    "IMAGE_TYPE_MISMATCH",
    "IMAGE_TOO_LARGE",
    "IMAGE_TOO_MANY_PIXELS",
    "IMAGE_DIMENSION_TOO_LARGE",
]
"""What whoever sent the images can put right."""

StorageCode = Literal[
    "INVALID_ATTACHMENT_REF",
    "ATTACHMENT_CORRUPT",
    "ATTACHMENT_WRITE_FAILED",
    "ATTACHMENT_NOT_FOUND",
    "ATTACHMENT_READ_FAILED",
    "ATTACHMENT_PROJECTION_UNSUPPORTED",
]
"""What only the keeper of the store can."""

ADMISSION_CODES: Final[frozenset[str]] = frozenset(get_args(AdmissionCode))


class AttachmentError(DshError):
    """An attachment was refused, or could not be stored or read; ``code`` says which."""

    code = "ATTACHMENT"

    def __init__(self, code: AdmissionCode | StorageCode, message: str) -> None:
        super().__init__(message, code=code)


def is_image_admission_error(error: object) -> TypeIs[DshError]:
    """Whether an error means that the sender of an image can put it right.

    The code decides, whatever the class: a store may come from another package.
    """
    return isinstance(error, DshError) and error.code in ADMISSION_CODES


class Dimensions(TypedDict):
    """Pixels across and down."""

    width: int
    height: int


class ImageAttachmentRef(TypedDict):
    """What a message holds of an image. All but ``name`` describes the stored bytes."""

    attachmentId: str
    mediaType: str
    bytes: int
    width: int
    height: int
    name: NotRequired[str]
    originalDimensions: NotRequired[Dimensions]
    """The size before it was scaled down; absent when it was not."""


class EncodedImage(TypedDict):
    """An image as it comes over a wire."""

    mediaType: str
    data: str
    """Its bytes in base64, with padding and without line breaks."""
    name: NotRequired[str]


@value
class ImageInput:
    """An image that somebody wants to attach."""

    data: bytes = field(repr=False)
    media_type: str
    """What it is said to be."""
    name: str | None = None
    """A file name; folders before it are dropped."""


@value(kw_only=True)
class ImageLimits:
    """What a store takes. They bind new images, not those that are stored."""

    max_image_bytes: int
    max_images_per_message: int
    max_message_image_bytes: int
    max_image_pixels: int
    max_image_dimension: int
    media_types: tuple[str, ...] = IMAGE_MEDIA_TYPES

    def wire(self) -> dict[str, Any]:
        """Return them under the names that clients know."""
        return {
            "maxImageBytes": self.max_image_bytes,
            "maxImagesPerMessage": self.max_images_per_message,
            "maxMessageImageBytes": self.max_message_image_bytes,
            "maxImagePixels": self.max_image_pixels,
            "maxImageDimension": self.max_image_dimension,
            "mediaTypes": list(self.media_types),
        }


@value(kw_only=True)
class RequestImagePolicy:
    """How large an image of a model request may be."""

    max_pixels: int
    max_bytes: int


@value(kw_only=True)
class RequestImage:
    """An image as a request carries it."""

    variant_id: str
    """The same for the same attachment under the same policy."""
    data: bytes = field(repr=False)
    media_type: str
    width: int
    height: int


class AttachmentStore(Service, ABC):
    """Keeps images for messages to refer to.

    Methods may be called from any task; a caller that is cancelled stops waiting, and leaves
    nothing half stored.
    """

    name: ClassVar[str] = "attachments"

    @property
    @abstractmethod
    def image_limits(self) -> ImageLimits:
        """What it takes now."""

    @abstractmethod
    async def validate_image(self, image: ImageInput) -> Dimensions:
        """Decode an image as `save_image` would, and store nothing.

        Returns:
            The size of the image as people see it.

        Raises:
            AttachmentError: an `AdmissionCode` says what is wrong with it.
        """

    @abstractmethod
    async def save_images(self, images: Sequence[ImageInput]) -> list[ImageAttachmentRef]:
        """Store the images of one message, all of them or none.

        What is stored may be smaller than, or encoded otherwise than, what was given. It is
        durable when this returns.

        Returns:
            One reference an image, in their order.

        Raises:
            AttachmentError: an `AdmissionCode` when an image is refused, and nothing was
                written; ``ATTACHMENT_WRITE_FAILED`` when the store cannot be written.
        """

    async def save_image(self, image: ImageInput) -> ImageAttachmentRef:
        """Store one image; see `save_images`."""
        return (await self.save_images([image]))[0]

    @abstractmethod
    async def read_image(self, ref: Mapping[str, Any]) -> bytes:
        """Return the bytes that a reference means, once they are verified against it.

        Raises:
            AttachmentError: a `StorageCode` says why not.
        """

    async def read_image_request(
        self, ref: Mapping[str, Any], policy: RequestImagePolicy
    ) -> RequestImage:
        """Return an image in a form that a request may carry.

        Raises:
            AttachmentError: ``ATTACHMENT_PROJECTION_UNSUPPORTED`` when there is no such form;
                else see `read_image`.
        """
        raise AttachmentError(
            "ATTACHMENT_PROJECTION_UNSUPPORTED",
            f"attachment store {type(self).__name__} keeps images as they are and cannot fit one "
            f"into {policy.max_pixels} pixels and {policy.max_bytes} bytes; mount another store",
        )


async def admit_encoded_images(
    store: AttachmentStore, images: Sequence[EncodedImage]
) -> list[ImageAttachmentRef]:
    """Decode images that came over a wire, and store them; see `AttachmentStore.save_images`.

    Limits that can be checked by number and length are, before anything is decoded.

    Raises:
        AttachmentError: as from `AttachmentStore.save_images`, and ``INVALID_IMAGE_BASE64``.
    """
    limits = store.image_limits
    check_count(limits, len(images))
    check_sizes(limits, [len(image["data"]) // 4 * 3 - 2 for image in images])
    return await store.save_images([_decoded(i, image) for i, image in enumerate(images)])


def check_count(limits: ImageLimits, count: int) -> None:
    """Refuse more images than a message may have.

    Raises:
        AttachmentError: ``TOO_MANY_IMAGES``.
    """
    if count > limits.max_images_per_message:
        most = limits.max_images_per_message
        raise AttachmentError(
            "TOO_MANY_IMAGES", f"{count} images are more than the {most} that a message may have"
        )


def check_sizes(limits: ImageLimits, sizes: Sequence[int]) -> None:
    """Refuse images that are too large together, or one by one.

    Raises:
        AttachmentError: ``IMAGES_TOO_LARGE`` or ``IMAGE_TOO_LARGE``.
    """
    if (total := sum(sizes)) > limits.max_message_image_bytes:
        raise AttachmentError(
            "IMAGES_TOO_LARGE",
            f"the images of the message have {total} bytes, "
            f"more than the {limits.max_message_image_bytes} allowed",
        )
    for position, size in enumerate(sizes, 1):
        if size > limits.max_image_bytes:
            raise AttachmentError(
                "IMAGE_TOO_LARGE",
                f"image {position} has {size} bytes, more than the {limits.max_image_bytes} "
                "allowed; send a smaller one",
            )


def _decoded(index: int, image: EncodedImage) -> ImageInput:
    try:
        data = base64.b64decode(image["data"].encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        data = b""
    # Only the canonical form counts: what decodes to the same bytes would have two spellings.
    if not data or base64.b64encode(data).decode() != image["data"]:
        raise AttachmentError(
            "INVALID_IMAGE_BASE64",
            f"image {index + 1} is not valid base64; send its bytes in canonical base64",
        )
    return ImageInput(data, image["mediaType"], image.get("name"))
