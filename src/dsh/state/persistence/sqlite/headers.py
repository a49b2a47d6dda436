"""Headers as rows of a table."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from dsh.state.persistence.errors import PersistenceError
from dsh.state.persistence.scan import read_header_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsh.state.session.events import SessionHeader

_FIELDS: Final = {
    "id": "id",
    "version": "version",
    "createdAt": "created_at",
    "cwd": "cwd",
    "parentSession": "parent_session",
    "seedLength": "seed_length",
    "origin": "origin",
    "delegationDepth": "delegation_depth",
    "agentPreset": "agent_preset",
}
_REMEMBERED: Final = 10_000
COLUMNS: Final = ", ".join(_FIELDS.values())
"""The columns of a header, in order."""
MARKS: Final = ", ".join(
    "?" if field in ("version", "createdAt", "seedLength", "delegationDepth") else "CAST(? AS TEXT)"
    for field in _FIELDS
)
"""Where their values go in a statement."""


def text(value: str) -> bytes:
    """Return what stands for a text in a ``CAST(? AS TEXT)``: any text, lone surrogates too."""
    return value.encode("utf-8", "surrogatepass")


def header_values(header: Mapping[str, Any]) -> list[Any]:
    """Return the values of a header's columns.

    Raises:
        PersistenceError: it has a field for which there is no column.
    """
    if unknown := header.keys() - _FIELDS.keys():
        names = ", ".join(sorted(unknown))
        raise PersistenceError(
            f"session {header['id']!r} cannot be stored in a database: its header has {names}, "
            "for which there is no column"
        )
    values = ({"delegationDepth": 0} | dict(header)).get
    return [text(found) if isinstance(found := values(field), str) else found for field in _FIELDS]


def read_header(row: Sequence[Any]) -> SessionHeader:
    """Return the header that the columns of a row hold.

    Raises:
        SessionFormatUnsupportedError: the version is not the one of this build.
        SessionPersistenceCorruptionError: it is not a header.
    """
    return _read(*row)


# A header never changes and is frozen, and the same columns are listed again and again.
@lru_cache(maxsize=_REMEMBERED, typed=True)
def _read(*row: Any) -> SessionHeader:
    record = {
        field: found.decode("utf-8", "surrogatepass") if isinstance(found, bytes) else found
        for field, found in zip(_FIELDS, row, strict=True)
        if found is not None
    }
    return read_header_fields(record)
