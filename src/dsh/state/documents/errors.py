"""What is wrong with a document; no text of these quotes what stands in it."""

from __future__ import annotations

from pathlib import Path

from dsh.base.errors import DshError

__all__ = ["DocumentError", "DocumentUnpatchable", "OpenToOthers"]


class DocumentError(DshError, ValueError):
    """A document cannot be read or written.

    Attributes:
        path: The file.
        problem: What is wrong, without a word of its content.
        line: 1-based line, when it is known.
        column: 1-based column, when it is known.
    """

    code = "DOCUMENT"

    def __init__(
        self,
        path: Path,
        problem: str,
        *,
        what: str = "document",
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        where = f"{path}" if line is None else f"{path}:{line}:{column}"
        super().__init__(f"the {what} {where} cannot be used: {problem}")
        self.path, self.problem = path, problem
        self.line, self.column = line, column


class OpenToOthers(DocumentError):
    """A file that holds secrets may be read or written by somebody else; it was not parsed."""

    code = "DOCUMENT_OPEN"

    def __init__(self, path: Path, mode: int, *, what: str = "document") -> None:
        super().__init__(
            path,
            f"its mode {mode & 0o777:04o} lets others in; close it with: chmod 600 {path}",
            what=what,
        )
        self.mode = mode


class DocumentUnpatchable(DocumentError):
    """A change would not read back as it was meant, so nothing was written."""

    code = "DOCUMENT_UNPATCHABLE"

    def __init__(self, path: Path, *, what: str = "document") -> None:
        super().__init__(
            path, "its anchors or tags keep a program from changing it; edit it by hand", what=what
        )
