"""A log as JSON lines, as it would be stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsh.state.persistence.artifact.records import encode_events, encode_header

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent

_BATCH = 1000


def log_lines(header: Mapping[str, Any], events: Sequence[SessionEvent]) -> Iterator[bytes]:
    """Yield a log in parts that end with a line: the header, then its events.

    Runs of chunks share rows, so the text of a long reply is not blown up.
    """
    yield encode_header(header)
    for start in range(0, len(events), _BATCH):
        yield encode_events(events[start : start + _BATCH], pack=True)
