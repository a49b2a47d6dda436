"""The three facts about permissions in a log, and the projection of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from dsh.capability.sandbox.events import SANDBOX_MODE
from dsh.control.approval.events import APPROVAL_POLICY
from dsh.control.permissions.events import PERMISSION_PRESET
from dsh.control.permissions.service import PermissionFacts, PresetSelection

if TYPE_CHECKING:
    from dsh.state.projections.service import ProjectionUnit
    from dsh.state.session.events import SessionEvent

UNIT_KEY: Final = "permissions"

_STATED: Final = {
    PERMISSION_PRESET.name: ("preset", "preset"),
    SANDBOX_MODE.name: ("sandbox", "mode"),
    APPROVAL_POLICY.name: ("approval", "policy"),
}
"""By type of event: which fact it states, and under which key."""


def no_facts() -> PermissionFacts:
    """Return what an empty log says."""
    return PermissionFacts(preset=None, sandbox=None, approval=None)


def after(facts: PermissionFacts, event: Mapping[str, Any]) -> PermissionFacts:
    """Return the facts after one more event: the same object when it does not matter."""
    if event["type"] not in _STATED:
        return facts
    field, key = _STATED[event["type"]]
    stated = event["data"][key]
    if facts[field] == stated:  # type: ignore[literal-required]  # one of the three
        return facts
    return cast("PermissionFacts", {**facts, field: stated})


def facts_of(events: Iterable[Mapping[str, Any]]) -> PermissionFacts:
    """Return what a log says."""
    facts = no_facts()
    for event in events:
        facts = after(facts, event)
    return facts


def permissions_unit(
    select: Callable[[PermissionFacts], PresetSelection],
) -> ProjectionUnit[PermissionFacts]:
    """Return the projection ``permissions``; ``select`` makes the view of a state."""
    from dsh.state.projections.service import ProjectionUnit

    def fold(facts: PermissionFacts, event: SessionEvent) -> PermissionFacts:
        return after(facts, event)

    return ProjectionUnit[PermissionFacts](
        UNIT_KEY,
        init=no_facts,
        apply=fold,
        state_version=1,
        state_schema=_check_facts,
        view=lambda facts: cast("Any", select(facts)),
        view_schema=_check_view,
    )


def _check_facts(facts: Any) -> None:
    if not isinstance(facts, dict) or facts.keys() != PermissionFacts.__annotations__.keys():
        raise ValueError("it does not have the fields of the permissions")
    for field, stated in facts.items():
        if stated is not None and not isinstance(stated, str):
            raise ValueError(f"its {field} is {stated!r}")


def _check_view(view: Any) -> None:
    if not isinstance(view, dict) or view.keys() != PresetSelection.__annotations__.keys():
        raise ValueError("it does not have the fields of a selection")
    if view["currentValue"] not in [option["value"] for option in view["options"]]:
        raise ValueError(f"its currentValue {view['currentValue']!r} is no option")
