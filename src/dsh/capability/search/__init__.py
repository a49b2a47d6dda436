"""The search seam: what an engine is asked and what it answers."""

from __future__ import annotations

from dsh.capability.search.service import (
    FileQuery,
    Found,
    LineMatch,
    LineQuery,
    Matched,
    Scope,
    SearchEngine,
    SearchError,
    SearchErrorCode,
)

__all__ = [
    "FileQuery",
    "Found",
    "LineMatch",
    "LineQuery",
    "Matched",
    "Scope",
    "SearchEngine",
    "SearchError",
    "SearchErrorCode",
]
