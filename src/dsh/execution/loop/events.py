"""What the loop tells beside the ``agent/*`` events."""

from __future__ import annotations

from dsh.base.values import value
from dsh.kernel import Emit


@value
class ConfiguredAgentFailed:
    """An agent from the loop's own configuration could not be started."""

    session_id: str
    error: BaseException


AGENT_LOOP_CONFIG_START_FAILED = Emit[ConfiguredAgentFailed](
    "agent-loop/config-start-failed", errors="contain"
)
"""Not bound to an agent: there is none. Silent when the loop itself is going."""
