"""What the log keeps of the calls that programs make, and the say of plugins in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypedDict

from dsh.base.values import value
from dsh.kernel import Waterfall
from dsh.model.messages import ContentBlock
from dsh.state.session.events import EventType

if TYPE_CHECKING:
    from dsh.execution.agent.service import Agent
    from dsh.execution.tools.service import ToolExecution


class CodeDispatchStarted(TypedDict):
    """A call inside a call starts; ``subCallId`` is ``<parentCallId>:code:<n>``."""

    rootCallId: str
    parentCallId: str
    subCallId: str
    name: str
    arguments: object


class CodeDispatched(CodeDispatchStarted):
    """It has its result."""

    isError: bool
    content: Sequence[ContentBlock]


CODE_DISPATCH_START: Final = EventType("tool/code-dispatch-start", CodeDispatchStarted)
"""Before the policies of the inner call are asked."""

CODE_DISPATCH: Final = EventType("tool/code-dispatch", CodeDispatched)
"""Once for each start, whatever became of the call."""


@value
class CodeDispatchLogging:
    """The result of a program's call is about to be logged."""

    execution: ToolExecution
    """Of ``run_code``."""
    agent: Agent
    sub_call_id: str
    name: str
    is_error: bool
    content: Sequence[ContentBlock]


TOOLS_CODE_DISPATCH_LOG: Final = Waterfall[CodeDispatchLogging, Sequence[ContentBlock]](
    "tools/code-dispatch-log"
)
"""What of a result goes to the log; the program has the whole value already."""
