"""Request headers: what consecutive model requests have in common, folded from the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from dsh.base.json import equal, snapshot

if TYPE_CHECKING:
    from dsh.state.session.events import EpochHeader


def canonical_header(header: Mapping[str, Any]) -> EpochHeader:
    """Return the frozen header without parts that say nothing: empty text, tools or markers."""
    canonical = {"config": header["config"]}
    markers = {key: True for key, on in header.get("adapterDefaults", {}).items() if on is True}
    if markers:
        canonical["adapterDefaults"] = markers
    for key in ("system", "tools"):
        if header.get(key):
            canonical[key] = header[key]
    return cast("EpochHeader", snapshot(canonical))


def header_equals(left: Mapping[str, Any] | None, right: Mapping[str, Any] | None) -> bool:
    """Whether two headers make the same requests; a missing one equals only a missing one."""
    if left is None or right is None:
        return left is right
    return equal(canonical_header(left), canonical_header(right))


def fold_request_header(
    events: Iterable[Mapping[str, Any]], from_: EpochHeader | None = None
) -> EpochHeader | None:
    """Return the header in force after the events.

    Args:
        events: Any stretch of a log.
        from_: The header in force before it.
    """
    latest: Mapping[str, Any] | None = None
    for event in events:
        if event["type"] == "request/header":
            latest = event["data"]["header"]
    return from_ if latest is None else canonical_header(latest)
