"""The facts beside a log: built once, checked wherever they come from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any, cast

from dsh.base.json import NotLossless, snapshot
from dsh.state.session.errors import InvalidHeader
from dsh.state.session.surface import is_index
from dsh.state.session.vocabulary import SESSION_FORMAT_VERSION

if TYPE_CHECKING:
    from dsh.state.session.events import SessionHeader, SessionMeta

META_FIELDS = (
    "createdAt",
    "cwd",
    "parentSession",
    "seedLength",
    "origin",
    "delegationDepth",
    "agentPreset",
)
"""What a creator may set, in the order in which headers are written."""


def new_header(id: str, meta: SessionMeta | None, now_ms: int) -> SessionHeader:
    """Build the frozen header of a new session.

    Raises:
        InvalidHeader: a field of ``meta`` is unknown or wrong.
    """
    given: Mapping[str, Any] = meta or {}
    for field in given:
        if field not in META_FIELDS:
            raise InvalidHeader(field, f"is unknown; use one of {', '.join(META_FIELDS)}")
    header = {"version": SESSION_FORMAT_VERSION, "id": id, "createdAt": now_ms, **given}
    return checked_header(header, id)


def checked_header(header: Mapping[str, Any], id: str | None = None) -> SessionHeader:
    """Return a frozen copy of a header; fields of later versions are kept.

    Args:
        header: The candidate.
        id: The id it must have.

    Raises:
        InvalidHeader: names the field.
    """
    try:
        frozen: Any = snapshot(header, logged=True)
    except NotLossless as error:
        raise InvalidHeader("header", f"is not JSON: {error.message}") from error
    if not isinstance(frozen, dict):
        raise InvalidHeader("header", "is not an object")
    if type(frozen.get("version")) is not int or frozen["version"] != SESSION_FORMAT_VERSION:
        raise InvalidHeader("version", f"is not {SESSION_FORMAT_VERSION}")
    _check_text(frozen, "id", required=True)
    if id is not None and frozen["id"] != id:
        raise InvalidHeader("id", f"is {frozen['id']!r}, not {id!r}")
    if "createdAt" not in frozen:
        raise InvalidHeader("createdAt", "is missing")
    for field in ("createdAt", "seedLength", "delegationDepth"):
        if field in frozen and not is_index(frozen[field]):
            raise InvalidHeader(field, "is not a non-negative integer")
    for field in ("cwd", "parentSession", "agentPreset"):
        _check_text(frozen, field)
    if "cwd" in frozen and not _is_absolute(frozen["cwd"]):
        raise InvalidHeader("cwd", f"is {frozen['cwd']!r}, not an absolute path")
    if frozen.get("origin", "subagent") != "subagent":
        raise InvalidHeader("origin", f"is {frozen['origin']!r}, not 'subagent'")
    return cast("SessionHeader", frozen)


def _check_text(header: Mapping[str, Any], field: str, *, required: bool = False) -> None:
    if field not in header:
        if required:
            raise InvalidHeader(field, "is missing")
        return
    value = header[field]
    if not isinstance(value, str) or (required and not value):
        raise InvalidHeader(field, "is not a text")


def _is_absolute(path: str) -> bool:
    # A log may come from another system.
    return PurePosixPath(path).is_absolute() or PureWindowsPath(path).is_absolute()
