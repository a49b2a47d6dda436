"""What changed between two texts, as the hunks that user interfaces show."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NotRequired, TypedDict

CONTEXT_LINES = 3
"""Unchanged lines around a change."""

MAX_COMPARED_LINES = 2000
"""A longer changed region is shown as one hunk instead of being compared line by line."""

MAX_TEXT_CHARS = 100_000
"""Characters kept of all hunks together, on each side."""


class FileDiff(TypedDict):
    """One changed region of a file, with context."""

    path: str
    oldText: str | None
    """``None`` when there was nothing."""
    newText: str
    oldStart: NotRequired[int]
    """Number of the region's first line before the change."""
    newStart: NotRequired[int]
    truncated: NotRequired[bool]
    """The texts are longer than what is kept."""


def file_diffs(path: str, before: str | None, after: str) -> list[FileDiff]:
    """Return one diff for each changed region; equal texts have none.

    Args:
        path: As people see it.
        before: ``None`` for a file that did not exist.
        after: The text now.
    """
    if before is None:
        return _bounded([{"path": path, "oldText": None, "newText": after}])
    before, after, skipped = _without_shared_ends(before, after)
    old, new = _lines(before), _lines(after)
    diffs = [_diff(path, old, new, *hunk) for hunk in _hunks(old, new)]
    for diff in diffs:
        diff["oldStart"] += skipped
        diff["newStart"] += skipped
    return _bounded(diffs)


def _without_shared_ends(before: str, after: str) -> tuple[str, str, int]:
    """Cut off what both share at their ends, but for context: most of a big file, most times.

    Returns:
        Both texts, and how many lines are missing at their start.
    """
    start = before.rfind("\n", 0, _common_chars(before, after)) + 1
    for _ in range(CONTEXT_LINES):
        start = before.rfind("\n", 0, max(start - 1, 0)) + 1
    old, new = before[start:], after[start:]
    end = len(old) - _common_chars(old, new, at_end=True)
    for _ in range(CONTEXT_LINES + 1):
        end = old.find("\n", end) + 1 or len(old)
    surplus = len(old) - end
    return old[:end], new[: len(new) - surplus], before.count("\n", 0, start)


def _common_chars(left: str, right: str, *, at_end: bool = False) -> int:
    """Length of the common prefix, or suffix, found by halving."""
    least, most = 0, min(len(left), len(right))
    while least < most:
        half = (least + most + 1) // 2
        piece = right[len(right) - half :] if at_end else right[:half]
        same = left.endswith(piece) if at_end else left.startswith(piece)
        least, most = (half, most) if same else (least, half - 1)
    return least


def _lines(text: str) -> list[str]:
    *complete, rest = text.split("\n")
    lines = [f"{line}\n" for line in complete]
    return [*lines, rest] if rest else lines


def _diff(
    path: str, old: Sequence[str], new: Sequence[str], i1: int, i2: int, j1: int, j2: int
) -> FileDiff:
    return {
        "path": path,
        "oldText": "".join(old[i1:i2]) or None,
        "newText": "".join(new[j1:j2]),
        "oldStart": i1 + 1,
        "newStart": j1 + 1,
    }


def _hunks(old: list[str], new: list[str]) -> list[tuple[int, int, int, int]]:
    lead = _common(old, new)
    trail = _common(old[lead:][::-1], new[lead:][::-1])
    middle_old, middle_new = old[lead : len(old) - trail], new[lead : len(new) - trail]
    if not middle_old and not middle_new:
        return []
    if max(len(middle_old), len(middle_new)) > MAX_COMPARED_LINES:
        changes = [(lead, lead + len(middle_old), lead, lead + len(middle_new))]
    else:
        changes = [
            (lead + i1, lead + i2, lead + j1, lead + j2)
            for tag, i1, i2, j1, j2 in SequenceMatcher(None, middle_old, middle_new).get_opcodes()
            if tag != "equal"
        ]
    return _with_context(changes, len(old), len(new))


def _with_context(
    changes: list[tuple[int, int, int, int]], old_length: int, new_length: int
) -> list[tuple[int, int, int, int]]:
    hunks: list[tuple[int, int, int, int]] = []
    for i1, i2, j1, j2 in changes:
        before = min(CONTEXT_LINES, i1, j1)
        after = min(CONTEXT_LINES, old_length - i2, new_length - j2)
        grown = (i1 - before, i2 + after, j1 - before, j2 + after)
        if hunks and grown[0] <= hunks[-1][1]:
            last = hunks.pop()
            grown = (last[0], grown[1], last[2], grown[3])
        hunks.append(grown)
    return hunks


def _common(left: Sequence[str], right: Sequence[str]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))


def _bounded(diffs: list[FileDiff]) -> list[FileDiff]:
    room = MAX_TEXT_CHARS
    kept: list[FileDiff] = []
    for diff in diffs:
        if room <= 0:
            break
        size = max(len(diff["oldText"] or ""), len(diff["newText"]))
        if size > room:
            old = diff["oldText"]
            diff = {
                **diff,
                "oldText": old[:room] if old is not None else None,
                "newText": diff["newText"][:room],
                "truncated": True,
            }
        room -= size
        kept.append(diff)
    return kept
