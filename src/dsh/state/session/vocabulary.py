"""Names of the log: the types every reader knows, and the version of the format."""

from __future__ import annotations

from typing import Final

SESSION_FORMAT_VERSION: Final = 0
"""Bumped when an older reader could no longer read a log with its full meaning."""

SURFACE_EVENT_TYPES: Final = frozenset({"user/message", "assistant/message", "tool/result"})
"""The types that the model sees; all others are kept for people and programs."""

CORE_SESSION_EVENT_TYPES: Final = frozenset(
    {
        "assistant/chunk",
        "assistant/message",
        "request/context",
        "request/header",
        "session/end-seed",
        "step/end",
        "step/start",
        "todo/write",
        "tool/call",
        "tool/result",
        "turn/end",
        "turn/start",
        "user/message",
    }
)
"""The types that belong to the log itself."""

KNOWN_SESSION_EVENT_TYPES: Final = CORE_SESSION_EVENT_TYPES | frozenset(
    {
        "agent-preset/selected",
        "agent/inbox/spliced",
        "approval/asked",
        "approval/decided",
        "approval/policy",
        "command/done",
        "command/run",
        "compaction/end",
        "compaction/prune",
        "compaction/start",
        "compaction/summary",
        "feedback/record",
        "goal/change",
        "hook/invoked",
        "hook/result",
        "llm/retry",
        "llm/retry-started",
        "permission/preset",
        "plan/mode",
        "sandbox/mode",
        "schedule/change",
        "session/title",
        "session/title-llm-request",
        "subagent/descriptor",
        "team/member",
        "team/message/delivered",
        "team/message/queued",
        "team/task",
        "tool-workflow/agent-end",
        "tool-workflow/agent-start",
        "tool-workflow/run-end",
        "tool-workflow/run-start",
        "tool/code-dispatch",
        "tool/code-dispatch-start",
        "web/deepseek-search-llm-request",
    }
)
"""Every type of the shared format: a log that holds another one must mark it ignorable."""

RETIRED_SESSION_EVENT_TYPES: Final = frozenset({"request/header-delta"})
"""Types that no writer may use again."""

CHUNK_ROW_TYPES: Final = frozenset({"text-chunks", "reasoning-chunks", "tool-call-chunks"})
"""Tags of stored rows that hold a run of chunk events."""

RESERVED_RECORD_TYPES: Final = CHUNK_ROW_TYPES | {"session"}
"""Tags that mean something else on disk, so that no event may be called so."""


def is_surface_type(name: str) -> bool:
    """Whether events of this type can be part of what the model sees."""
    return name in SURFACE_EVENT_TYPES
