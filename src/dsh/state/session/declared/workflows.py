"""What the log keeps of workflow runs."""

from __future__ import annotations

from typing import Final, Literal, NotRequired, TypedDict

from dsh.state.session.events import EventType


class WorkflowRunStarted(TypedDict):
    """A run began."""

    runId: str
    name: str


class WorkflowAgentStarted(TypedDict):
    """A run started an agent; ``seq`` numbers them."""

    runId: str
    seq: int
    label: str
    phase: NotRequired[str]
    childId: str


class WorkflowAgentEnded(TypedDict):
    """The agent with this number is done."""

    runId: str
    seq: int
    outcome: Literal["completed", "failed", "cancelled"]


class WorkflowRunEnded(TypedDict):
    """The run is over."""

    runId: str
    stopReason: Literal["completed", "cancelled", "error"]


WORKFLOW_RUN_START: Final = EventType("tool-workflow/run-start", WorkflowRunStarted)
"""Before the first agent of a run."""
WORKFLOW_AGENT_START: Final = EventType("tool-workflow/agent-start", WorkflowAgentStarted)
"""Before the agent runs."""
WORKFLOW_AGENT_END: Final = EventType("tool-workflow/agent-end", WorkflowAgentEnded)
"""Once for each agent that started."""
WORKFLOW_RUN_END: Final = EventType("tool-workflow/run-end", WorkflowRunEnded)
"""After the last agent of a run."""
