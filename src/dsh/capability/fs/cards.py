"""The durable facts of a change, and the card that is rebuilt from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from dsh.capability.fs.diff import file_diffs

if TYPE_CHECKING:
    from dsh.base.json import JsonObject, JsonValue
    from dsh.execution.tools.service import ToolResultFacts


def diff_meta(path: str, before: str | None, after: str) -> JsonValue:
    """Return the meta of a result that changed a file."""
    # A TypedDict is a JSON object, which the type checker cannot see.
    return {"diffs": cast("list[JsonValue]", file_diffs(path, before, after))}


def present_diffs(_: object, facts: ToolResultFacts) -> JsonObject | None:
    """Return the card of a result that changed a file; ``None`` when its meta tells nothing."""
    meta = facts.meta
    if facts.is_error or not isinstance(meta, dict):
        return None
    diffs = meta.get("diffs")
    if not isinstance(diffs, list) or not diffs:
        return None
    return {"card": "diff", "diffs": diffs}
