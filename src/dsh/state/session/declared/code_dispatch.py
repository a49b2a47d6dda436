"""What the log keeps of tool calls that a program of the model makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

from dsh.model.messages import ContentBlock
from dsh.state.session.events import EventType


class CodeDispatchStarted(TypedDict):
    """A call inside a call started; ``subCallId`` is ``<parent>:code:<n>``."""

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
"""Before the inner call runs."""
CODE_DISPATCH: Final = EventType("tool/code-dispatch", CodeDispatched)
"""Once for each start."""
