"""What the log keeps of compactions; the copies for the model are ordinary surface events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NotRequired, TypedDict

from dsh.model.chunks import TokenUsage
from dsh.model.messages import ContentBlock
from dsh.state.session.events import EventType


class SurfaceRange(TypedDict):
    """Two nodes of the surface, and all between them."""

    start: int
    end: int


class CompactionStart(TypedDict):
    """A compaction holds the session."""

    compactionId: str
    sourceCommandId: NotRequired[str]
    turn: int | None
    """``None`` between turns."""


class CompactionSummary(TypedDict):
    """What stands for a stretch of history from here on."""

    compactionId: str
    sourceCommandId: NotRequired[str]
    summary: Sequence[ContentBlock]
    shadowedRange: SurfaceRange
    shadowedSeqs: Sequence[int]
    shadowedTokenCount: int
    provider: str
    model: str
    maxTokens: NotRequired[int]
    usage: NotRequired[TokenUsage]
    rawOutput: NotRequired[Sequence[ContentBlock]]
    llmStreamCall: NotRequired[Literal[True]]


class CompactionEnd(TypedDict):
    """The session is free again; without ``error`` there was exactly one summary."""

    compactionId: str
    sourceCommandId: NotRequired[str]
    turn: int | None
    error: NotRequired[object]


class CompactionPrune(TypedDict):
    """What the rewrite of one tool result, which follows at once, saves."""

    shadowedRange: SurfaceRange
    shadowedSeqs: Sequence[int]
    shadowedTokenCount: int


COMPACTION_START: Final = EventType("compaction/start", CompactionStart)
"""Before anything is read; one that a crash left open belongs to a dead process."""
COMPACTION_SUMMARY: Final = EventType("compaction/summary", CompactionSummary)
"""Right before the ``user/message`` that replaces the range."""
COMPACTION_END: Final = EventType("compaction/end", CompactionEnd)
"""Once for each start that the process lived to settle."""
COMPACTION_PRUNE: Final = EventType("compaction/prune", CompactionPrune)
"""Right before the ``tool/result`` that replaces another."""
