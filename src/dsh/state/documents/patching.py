"""Change a YAML text at its leaves, and leave every other byte as a person wrote it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dsh.base.json import equal
from dsh.state.documents.render import block, inline
from dsh.state.documents.spans import Pair, Spans, compose

__all__ = ["changed_paths", "patch_yaml"]

Path = tuple[str, ...]


def patch_yaml(
    text: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    read: Callable[[str], Mapping[str, Any]],
) -> str | None:
    """Return the text that reads as ``new``, or None when no careful change makes it so.

    Comments, order and unchanged entries stay. What is removed goes with the comment directly
    above it. Where an entry is written in a way that cannot be changed in part, it is written
    anew as a whole.

    Args:
        text: A document of one mapping, or without content.
        old: What it reads as.
        new: What it shall read as.
        read: Reads a text; its errors count as another meaning.
    """
    paths = changed_paths(old, new)
    whole = list(dict.fromkeys(path[:1] for path in paths))
    for targets in (paths, whole):
        try:
            patched = _apply_all(text, targets, new)
            if equal(read(patched), new):
                return patched
        except _Refused:
            continue
        except ValueError:  # the text between two changes, or the result, is not YAML
            continue
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "yaml":
                raise
    return None


def changed_paths(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Path]:
    """Return the deepest places at which two documents differ, removals first."""
    removed: list[Path] = []
    written: list[Path] = []
    _compare((), old, new, removed, written)
    return removed + written


def _compare(
    at: Path,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    removed: list[Path],
    written: list[Path],
) -> None:
    removed += [(*at, key) for key in old if key not in new]
    for key, value in new.items():
        here = (*at, key)
        if key not in old:
            written.append(here)
        elif isinstance(value, dict) and isinstance(old[key], dict) and value and old[key]:
            _compare(here, old[key], value, removed, written)
        elif not equal(old[key], value):
            written.append(here)


class _Refused(Exception):
    """The text has a shape that these few operations do not handle."""


_ABSENT: Any = object()


def _apply_all(text: str, paths: list[Path], new: Mapping[str, Any]) -> str:
    for path in paths:
        text = _apply(text, path, new)
    return text


def _apply(text: str, path: Path, new: Mapping[str, Any]) -> str:
    """Bring one place of the text to what ``new`` has there."""
    spans = Spans(text)
    root = compose(text)
    if root is None or (root.id == "scalar" and not root.value):
        return _at_end(spans, new)
    if root.id != "mapping":
        raise _Refused
    if root.flow_style:
        lines = spans.newline.join(block(new, 0)) if new else "{}"
        return text[: root.start_mark.index] + lines + text[root.end_mark.index :]
    mapping, pair = root, None
    for depth, key in enumerate(path):
        parent, pair = mapping, _find(mapping, key)
        value = _look(new, path[: depth + 1])
        if pair is None:
            return text if value is _ABSENT else _insert(spans, parent, key, value)
        mapping = pair[1]
        if value is _ABSENT:
            if len(parent.value) > 1 or depth == 0:
                return _remove(spans, pair)
            raise _Refused
        if depth == len(path) - 1 or not _is_open(spans, pair, value):
            return _replace(spans, pair, value)
    raise _Refused


def _is_open(spans: Spans, pair: Pair, value: Any) -> bool:
    """Whether an entry can be changed in part: a block of its own that keeps an entry."""
    node = pair[1]
    own = node.start_mark.index >= pair[0].end_mark.index
    return bool(own and node.id == "mapping" and not node.flow_style and value)


def _find(mapping: Any, key: str) -> Pair | None:
    return next((pair for pair in mapping.value if pair[0].value == key), None)


def _look(data: Any, path: Path) -> Any:
    for key in path:
        if not isinstance(data, dict) or key not in data:
            return _ABSENT
        data = data[key]
    return data


def _at_end(spans: Spans, new: Mapping[str, Any]) -> str:
    text = spans.text
    gap = "" if not text or text.endswith("\n") else spans.newline
    lines = block(new, 0) if new else []
    return text + gap + "".join(line + spans.newline for line in lines)


def _insert(spans: Spans, mapping: Any, key: str, value: Any) -> str:
    column = mapping.value[0][0].start_mark.column
    at = spans.line_end(spans.pair_end(mapping.value[-1]))
    lines = "".join(spans.newline + line for line in block({key: value}, column))
    return spans.text[:at] + lines + spans.text[at:]


def _remove(spans: Spans, pair: Pair) -> str:
    text, at = spans.text, pair[0].start_mark.index
    if text[spans.line_start(at) : at].strip():
        raise _Refused
    end = spans.line_end(spans.pair_end(pair))
    after = text.find("\n", end) + 1 or len(text)
    return text[: spans.leading_comment(at)] + text[after:]


def _replace(spans: Spans, pair: Pair, value: Any) -> str:
    text, colon = spans.text, spans.after_colon(pair)
    start, end = spans.value(pair)
    on_key_line = start <= spans.line_end(colon)
    nested = isinstance(value, (dict, list)) and bool(value)
    if on_key_line and not nested and not _is_block(pair[1]):
        gap = "" if text[start - 1 : start].isspace() else " "
        return text[:start] + gap + inline(value) + text[end:]
    comment, rest = _comment_between(spans, colon, start, end)
    if not nested:
        return text[:colon] + " " + inline(value) + comment + rest
    column = pair[0].start_mark.column + 2
    lines = "".join(spans.newline + line for line in block(value, column))
    return text[:colon] + comment + lines + rest


def _is_block(node: Any) -> bool:
    return node.style in ("|", ">") if node.id == "scalar" else not node.flow_style


def _comment_between(spans: Spans, colon: int, start: int, end: int) -> tuple[str, str]:
    """Return the comment on the key's line, and the text behind the value and that comment."""
    text, line_end = spans.text, spans.line_end(colon)
    rest = text[spans.line_end(end) :]
    if start > line_end:
        return text[colon:line_end].rstrip(), rest
    if end > line_end:
        return "", rest
    return text[end:line_end].rstrip(), rest
