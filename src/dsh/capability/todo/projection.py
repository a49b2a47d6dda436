"""The projection ``todos``: the list that stands, for those who watch."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from dsh.state.projections.service import ProjectionUnit
from dsh.state.session.events import TODO_WRITE, TURN_START, SessionEvent

Todos: TypeAlias = Any
"""A list of items as ``todo/write`` has them; None when no list stands."""

_STATES: Final = frozenset({"pending", "in_progress", "completed"})


def todos_unit() -> ProjectionUnit[Todos]:
    """Return the projection: the last list of the newest turn that began."""
    return ProjectionUnit[Todos](
        "todos",
        init=lambda: None,
        apply=after,
        state_version=2,
        state_schema=_check,
        view=lambda todos: todos,
        view_schema=_check,
    )


def after(todos: Todos, event: SessionEvent) -> Todos:
    """Return the list after one more event: the same object when it does not matter."""
    if event["type"] == TURN_START.name:
        return None
    return event["data"]["todos"] if event["type"] == TODO_WRITE.name else todos


def _check(todos: Any) -> None:
    if todos is not None and not (isinstance(todos, list) and all(map(_is_item, todos))):
        raise ValueError(f"{todos!r} is no todo list")


def _is_item(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and item.keys() == {"content", "status"}
        and isinstance(item["content"], str)
        and item["status"] in _STATES
    )
