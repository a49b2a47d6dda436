"""The seam of permission presets, ``ctx.permission_presets``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NotRequired, TypedDict

from dsh.base.errors import DshError
from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    from dsh.capability.sandbox.service import SandboxMode
    from dsh.control.approval.service import ApprovalPolicy
    from dsh.execution.agent.service import Agent
    from dsh.state.session.session import Session

CUSTOM: Final = "custom"
"""What is shown while the two settings of a session match no preset; it cannot be chosen."""


class PresetError(DshError):
    """Base of what permission presets refuse."""

    code = "PERMISSION_PRESET"


class InvalidPresets(PresetError, ValueError):
    """The table of presets, or the default, cannot be used; the row does not load."""

    code = "PERMISSION_PRESETS_INVALID"


class UnknownPreset(PresetError, LookupError):
    """No preset has this name.

    Attributes:
        preset: The name.
        known: The names that there are.
    """

    code = "PERMISSION_PRESET_UNKNOWN"

    def __init__(self, preset: str, known: Sequence[str]) -> None:
        super().__init__(f'unknown preset "{preset}" (available: {", ".join(known)})')
        self.preset, self.known = preset, tuple(known)


@value
class PresetSpec:
    """What a preset sets, and how it is shown."""

    sandbox: SandboxMode
    approval: ApprovalPolicy
    name: str | None = None
    description: str | None = None


class PresetOption(TypedDict):
    """A preset in a menu, in wire shape."""

    value: str
    name: str
    description: NotRequired[str]


class PresetSelection(TypedDict):
    """A menu of presets and which one is in force, in wire shape."""

    options: list[PresetOption]
    currentValue: str


class PermissionFacts(TypedDict):
    """The last event of each of the three types in a log; the state of the projection."""

    preset: str | None
    sandbox: SandboxMode | None
    approval: ApprovalPolicy | None


class PermissionPresetService(Service, ABC):
    """Names for pairs of sandbox mode and approval policy.

    A preset is what a person chose. What holds is still decided by ``sandbox/mode`` and
    ``approval/policy``; where these were changed apart from it, the session is `CUSTOM`.
    """

    name: ClassVar[str] = "permission_presets"

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The presets in the order of the table."""

    @property
    @abstractmethod
    def default_preset(self) -> str:
        """What new sessions get.

        It is what who started the process chose, else the user's setting, else the row's, else
        what holds anyway.
        """

    @abstractmethod
    def current(self, events: Iterable[Mapping[str, Any]]) -> str:
        """Return the preset in force at the end of a log, or `CUSTOM`."""

    @abstractmethod
    def resolve(self, name: str) -> PresetSpec:
        """Return what a preset sets.

        Raises:
            UnknownPreset: there is none of this name; the message lists those that there are.
        """

    @abstractmethod
    def option_of(self, name: str) -> PresetOption:
        """Return how a preset, or `CUSTOM`, is shown.

        Raises:
            UnknownPreset: it is neither.
        """

    @abstractmethod
    def select_for(self, state: PermissionFacts) -> PresetSelection:
        """Return the menu for a session; `CUSTOM` is in it only while it is in force."""

    @abstractmethod
    def set(self, session: Session, name: str, *, agent: Agent | None = None) -> None:
        """Choose a preset: log the choice, then change what differs; nothing if nothing does.

        Args:
            session: Whose.
            name: A preset of the table.
            agent: The live agent of the session; its model is told when the approval policy
                changes.

        Raises:
            UnknownPreset: there is none of this name; nothing is logged.
        """
