"""Text as files hold it: strict decoding, byte order marks, line ends, literal edits."""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import TYPE_CHECKING

from dsh.capability.fs.service import FsError

if TYPE_CHECKING:
    from dsh.capability.fs.service import FsEdit

BOM = b"\xef\xbb\xbf"
"""UTF-8 byte order mark. Files may have one; no text that leaves the provider does."""

NUL_PROBE_BYTES = 8192
"""A NUL this close to the start makes a file binary."""

_LINE_END = re.compile("\r\n|\r|\n")
_LINES_NAMED = 5


def not_text(path: str, why: str) -> FsError:
    """Return the refusal of a file that is not text."""
    return FsError(f"{path!r} is not a text file: {why}", code="FS_NOT_TEXT")


def decode_text(data: bytes, path: str, *, whole: bool = False) -> str:
    """Decode a file's bytes, without the byte order mark.

    Args:
        data: All bytes of the file.
        path: Names the file in the refusal.
        whole: Look for NUL everywhere instead of near the start.

    Raises:
        FsError: ``FS_NOT_TEXT``.
    """
    if data.find(b"\0", 0, len(data) if whole else NUL_PROBE_BYTES) >= 0:
        raise not_text(path, "it holds NUL bytes")
    try:
        return str(data.removeprefix(BOM), "utf-8")
    except UnicodeDecodeError as error:
        raise not_text(path, f"invalid UTF-8 near byte {error.start}") from error


def encode_text(text: str, path: str) -> bytes:
    """Encode what a caller wants in a file.

    Raises:
        FsError: ``FS_NOT_TEXT`` when there is a lone surrogate, which no file can hold.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        problem = f"the new content has a lone surrogate at character {error.start}"
        raise FsError(f"cannot write {path!r}: {problem}", code="FS_NOT_TEXT") from error


def lf(text: str) -> str:
    """Return ``text`` with every line end written as LF."""
    if "\r" not in text:
        return text
    return text.replace("\r\n", "\n").replace("\r", "\n")


def comparable(data: bytes) -> str | None:
    """Return prior content for a comparison, or ``None`` when it is not text."""
    try:
        return lf(decode_text(data, ""))
    except FsError:
        return None


class _LineMap:
    """A text with LF line ends, and the way back to the text it was made from."""

    def __init__(self, original: str) -> None:
        self.original = original
        self.text = lf(original)
        # Position in the LF text of every line end that takes two characters in the original.
        self._pairs = [
            match.start() - index
            for index, match in enumerate(re.finditer("\r\n", original))
            if len(self.text) != len(original)
        ]

    def origin(self, offset: int) -> int:
        return offset + bisect_left(self._pairs, offset)

    def line_end_near(self, offset: int) -> str:
        """The style in use at an offset of the original: of this line, else of the one before."""
        if found := _LINE_END.search(self.original, offset):
            return found[0]
        start = max(self.original.rfind("\n", 0, offset), self.original.rfind("\r", 0, offset))
        if start < 0:
            return "\n"
        return "\r\n" if self.original.endswith("\r\n", 0, start + 1) else self.original[start]


def apply_edit(original: str, edit: FsEdit, path: str) -> str:
    """Replace literally, blind to line-end styles; characters outside the change stay.

    What both strings share at their ends is not touched, so that a line end which the edit only
    quotes keeps its style. New line ends take the style of those they replace, or of their line.

    Raises:
        FsError: ``FS_EDIT_NOT_FOUND``, also when nothing would change; ``FS_AMBIGUOUS_EDIT``.
    """
    old, new = lf(edit.old_string), lf(edit.new_string)
    if not old or old == new:
        problem = "old_string is empty" if not old else "old_string and new_string are the same"
        raise FsError(f"the edit of {path!r} changes nothing: {problem}", code="FS_EDIT_NOT_FOUND")
    if edit.replace_all and "\r" not in original and old in original:
        return original.replace(old, new)
    lines = _LineMap(original)
    matches = _matches(lines.text, old, edit.replace_all, path)
    lead = _shared(old, new)
    trail = _shared(old[lead:][::-1], new[lead:][::-1])
    inserted = new[lead : len(new) - trail]
    parts, done = [], 0
    for match in matches:
        start, end = lines.origin(match + lead), lines.origin(match + len(old) - trail)
        parts += [original[done:start], _styled(inserted, lines, start, end)]
        done = end
    return "".join([*parts, original[done:]])


def _shared(left: str, right: str) -> int:
    """Length of the common prefix."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))


def _matches(text: str, old: str, every: bool, path: str) -> list[int]:
    first = text.find(old)
    if first < 0:
        raise FsError(
            f"old_string does not occur in {path!r}; it must match the file exactly, with its "
            "whitespace and without the line numbers that read adds",
            code="FS_EDIT_NOT_FOUND",
        )
    found = [first]
    step = len(old) if every else 1
    # Overlapping matches of a long text in a longer one may be too many to look at them all.
    enough = len(text) if every else _LINES_NAMED + 1
    while len(found) < enough and (following := text.find(old, found[-1] + step)) >= 0:
        found.append(following)
    if len(found) > 1 and not every:
        raise _ambiguous(text, old, found, path)
    return found


def _ambiguous(text: str, old: str, found: list[int], path: str) -> FsError:
    named = ", ".join(str(text.count("\n", 0, at) + 1) for at in found[:_LINES_NAMED])
    more = ", ..." if len(found) > _LINES_NAMED else ""
    times = max(len(found), text.count(old))
    return FsError(
        f"old_string occurs {times} times in {path!r} (from lines {named}{more}); add "
        "surrounding lines to make it unique, or set replace_all",
        code="FS_AMBIGUOUS_EDIT",
    )


def _styled(inserted: str, lines: _LineMap, start: int, end: int) -> str:
    if "\n" not in inserted or "\r" not in lines.original:
        return inserted
    replaced = _LINE_END.findall(lines.original, start, end)
    ends = iter(replaced)
    default = replaced[-1] if replaced else lines.line_end_near(end)
    return re.sub("\n", lambda _: next(ends, default), inserted)
