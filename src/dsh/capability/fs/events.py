"""Events around file tools: what a change may assume, what was seen, and how that is logged."""

from __future__ import annotations

from typing import TYPE_CHECKING, NotRequired, TypeAlias, TypedDict

from dsh.base.values import value
from dsh.capability.fs.service import EditExpectation, FsTarget, WriteExpectation
from dsh.kernel import Emit, Waterfall
from dsh.state.session.events import EventType

if TYPE_CHECKING:
    from dsh.execution.tools.service import ToolExecution


@value
class FsWriteIntent:
    """A tool is about to write a whole file."""

    target: FsTarget
    actor: ToolExecution
    """The call; its agent's session is whose knowledge counts."""


@value
class FsEditIntent:
    """A tool is about to change a piece of a file."""

    target: FsTarget
    actor: ToolExecution


@value
class Present:
    """The target was there, in this version."""

    version: str


@value
class Absent:
    """Nothing was there."""


FsObservation: TypeAlias = Present | Absent
"""What a tool saw of a target."""


@value
class FsObserved:
    """A tool read, wrote or missed a target."""

    target: FsTarget
    observation: FsObservation
    actor: ToolExecution


FS_WRITE_INTENT = Waterfall[FsWriteIntent, WriteExpectation]("fs/write-intent")
"""What must hold of the target for the write; the first listener to return decides.

Without one the write is unconditional. A listener may raise `FsError` to refuse.
"""

FS_EDIT_INTENT = Waterfall[FsEditIntent, EditExpectation]("fs/edit-intent")
"""What must hold of the target for the edit; otherwise as `FS_WRITE_INTENT`."""

FS_OBSERVED = Emit[FsObserved]("fs/observed")
"""After the fact: a listener that raises fails the tool call, but the file stays as it is."""


class FsObservationData(TypedDict):
    """What the session saw of a file; the last entry of a target counts."""

    target: str
    """Identity of the file."""
    version: NotRequired[str]
    """Left out when nothing was there."""


FS_OBSERVATION = EventType("fs/observation", FsObservationData, ignorable=True)
"""One entry whenever a session sees another version than before. Nothing the model reads."""
