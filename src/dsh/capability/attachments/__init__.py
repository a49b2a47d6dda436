"""Attachments: images that messages refer to, kept by the digest of their bytes."""

from __future__ import annotations

from dsh.capability.attachments.service import (
    AttachmentError,
    AttachmentId,
    AttachmentStore,
    EncodedImage,
    ImageAttachmentRef,
    ImageInput,
    ImageLimits,
    RequestImage,
    RequestImagePolicy,
    admit_encoded_images,
    is_image_admission_error,
)

__all__ = [
    "AttachmentError",
    "AttachmentId",
    "AttachmentStore",
    "EncodedImage",
    "ImageAttachmentRef",
    "ImageInput",
    "ImageLimits",
    "RequestImage",
    "RequestImagePolicy",
    "admit_encoded_images",
    "is_image_admission_error",
]
