"""Names of exported files, safe on every system."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST = 200
"""Characters of an id in a file name, which file systems bound at 255 bytes."""
_EXTENSIONS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/webp": "webp",
    "image/gif": "gif",
}


def safe_name(id: str) -> str:
    """Return an id as part of a file name; different ids may give the same."""
    return _UNSAFE.sub("_", id)


def archive_name(id: str, extension: str = "zip") -> str:
    """Return the file name of an exported session; a very long id is cut."""
    return f"dsh-session-{safe_name(id)[:_LONGEST]}.{extension}"


def media_name(ref: Mapping[str, Any]) -> str:
    """Return the file name of an image by its reference."""
    extension = _EXTENSIONS.get(ref.get("mediaType", ""), "bin")
    return f"{safe_name(str(ref['attachmentId']))}.{extension}"
