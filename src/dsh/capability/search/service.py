"""What a search engine is to the search tools: two questions, and how they can fail."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, TypeAlias

from dsh.base.errors import DshError
from dsh.base.values import value

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal

SearchErrorCode: TypeAlias = Literal[
    "SEARCH_INVALID_PATTERN", "SEARCH_FAILED", "SEARCH_ABORTED", "SEARCH_RAW_OUTPUT_OVERFLOW"
]
"""Every way a search fails; the set is closed."""


class SearchError(DshError):
    """A search did not come to a result.

    Attributes:
        code: One of `SearchErrorCode`.
    """

    code: str = "SEARCH_FAILED"

    def __init__(self, message: str, *, code: SearchErrorCode) -> None:
        super().__init__(message, code=code)


@value
class Scope:
    """Where to search: a folder that exists, and what in it."""

    cwd: str
    """Absolute; globs and results are relative to it."""
    path: str
    """Relative to ``cwd``: a folder (``.`` for all of it) or a file."""
    is_file: bool = False
    """``path`` is a file, which is searched even if it looks binary or would be ignored."""


@value
class FileQuery:
    """Which files have a matching path. Hidden and ignored ones count, version control does not."""

    scope: Scope
    globs: tuple[str, ...]
    """Any of them suffices."""


@value
class LineQuery:
    """Which lines match. Hidden, ignored and binary files are left out."""

    scope: Scope
    pattern: str
    """A regular expression in the dialect of ripgrep."""
    globs: tuple[str, ...] = ()
    """Only files that match one of them, if there are any."""


@value
class LineMatch:
    """One matching line."""

    path: str
    """Relative to the scope's ``cwd``."""
    number: int
    """From 1; lines end with LF."""
    line: str | None
    """Without its end; ``None`` when it is not valid UTF-8."""


@value
class Found:
    """The files of a `FileQuery`, in no order."""

    paths: list[str]
    """Relative to the scope's ``cwd``; undecodable names have U+FFFD in them."""
    unreadable: int = 0
    """Folders that could not be searched."""


@value
class Matched:
    """The lines of a `LineQuery`: by path, then by number."""

    matches: list[LineMatch]
    unreadable: int = 0
    """Files and folders that could not be searched."""


class SearchEngine(ABC):
    """Searches the files of the machine. All engines give the same results."""

    @abstractmethod
    async def files(self, query: FileQuery, signal: AbortSignal | None) -> Found:
        """Find files by path.

        Raises:
            SearchError: a glob is malformed, the search failed or was aborted, or there is too
                much output.
        """

    @abstractmethod
    async def lines(self, query: LineQuery, signal: AbortSignal | None) -> Matched:
        """Find lines by content.

        Raises:
            SearchError: as for `files`; also for a malformed pattern.
        """
