"""The ``todo_write`` tool: row ``tool-todo``.

The list lives in the log alone: ``todo/write`` holds the whole of it, and the last one counts.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, cast

from pydantic import BaseModel, ConfigDict, Field

from dsh.base.errors import DshError
from dsh.base.values import value
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.service import ToolArgsError, ToolDefinition, ToolRunContext, ToolRuntime
from dsh.kernel.errors import ValidationError
from dsh.kernel.validation import checked_fields
from dsh.state.projections.service import ProjectionRegistry
from dsh.state.session.events import TODO_WRITE, TodoItem, TodoWriteData

if TYPE_CHECKING:
    from typing import Self

    from dsh.kernel import Context

name = "tool-todo"
inject = (ToolRuntime,)

Status = Literal["pending", "in_progress", "completed"]

_DESCRIPTION: Final = """\
Keep a list of what you mean to do, for work of several steps; people see it as you go.

Each call replaces the whole list. Write it before you begin, mark an item `in_progress` when you \
start on it and `completed` as soon as it is done, and add what you find out on the way. Do not \
use it for a task of one or two steps."""
_ONE_AT_A_TIME: Final = " At most one item may be `in_progress`."


@value
class Config:
    """How many things an agent may do at once."""

    allow_parallel_in_progress: bool
    """Whether more than one item may be in progress."""

    @classmethod
    def validate(cls, raw: object) -> Self:
        """Return the config behind a row's mapping.

        Raises:
            ValidationError: it names every field that does not fit.
        """
        given = checked_fields(raw, _CHECKS)
        if not given:
            raise ValidationError([("expected true or false, got nothing", _PARALLEL)])
        return cls(given[_PARALLEL])


_PARALLEL: Final = "allowParallelInProgress"
_CHECKS: Final = {_PARALLEL: (lambda given: type(given) is bool, "true or false")}


class NoList(DshError, LookupError):
    """A list was written by nobody."""

    code = "NO_TODO_LIST"

    def __init__(self) -> None:
        super().__init__("a todo list belongs to an agent, and this call was made by none")


class Todo(BaseModel):
    """One thing to do."""

    model_config = ConfigDict(extra="forbid")

    content: str = Field(description="What is to be done, in a few words.")
    status: Status = Field(description="How far it is.")


class TodoArgs(BaseModel):
    """The arguments of the tool."""

    model_config = ConfigDict(extra="forbid")

    todos: list[Todo] = Field(description="The whole list, in the order of the work.")


class TodoCounts(TypedDict):
    """How many items are how far."""

    pending: int
    inProgress: int
    completed: int


class TodoValue(TypedDict):
    """The list that holds from now on."""

    todos: list[TodoItem]
    counts: TodoCounts


def apply(ctx: Context, config: Config) -> None:
    """Offer the tool, and the projection ``todos`` where there are projections."""
    ctx.require(ToolRuntime).register(todo_tool(config))
    ctx.inject([ProjectionRegistry], _offer_projection)


def todo_tool(config: Config) -> ToolDefinition:
    """Return the tool."""
    parallel = config.allow_parallel_in_progress

    async def todo_write(args: TodoArgs, run: ToolRunContext) -> TodoValue:
        if run.agent is None:
            raise NoList
        _check(args.todos, parallel=parallel)
        todos = [TodoItem(content=todo.content, status=todo.status) for todo in args.todos]
        run.agent.session.append(TODO_WRITE, TodoWriteData(todos=todos))
        return TodoValue(todos=todos, counts=_count(todos))

    return define_tool(
        todo_write,
        description=_DESCRIPTION if parallel else _DESCRIPTION + _ONE_AT_A_TIME,
        render=_text,
        present_call=lambda _: {"card": "generic", "title": "Update todo list", "kind": "other"},
    )


def _check(todos: list[Todo], *, parallel: bool) -> None:
    wrong = [
        f"todos[{place}].content is empty; say what is to be done"
        for place, todo in enumerate(todos)
        if not todo.content.strip()
    ]
    times = Counter(todo.content.strip() for todo in todos)
    wrong += [
        f"{content!r} is in the list {count} times; each item must differ"
        for content, count in times.items()
        if content and count > 1
    ]
    busy = sum(todo.status == "in_progress" for todo in todos)
    if busy > 1 and not parallel:
        wrong.append(f"{busy} items are in_progress; at most one may be")
    if wrong:
        raise ToolArgsError(wrong, tool="todo_write")


def _count(todos: list[TodoItem]) -> TodoCounts:
    count = Counter(todo["status"] for todo in todos)
    return TodoCounts(
        pending=count["pending"], inProgress=count["in_progress"], completed=count["completed"]
    )


def _text(_: TodoArgs, value: Any) -> str:
    counts = cast("TodoCounts", value["counts"])
    return (
        f"Updated todo list: {counts['pending']} pending, {counts['inProgress']} in progress, "
        f"{counts['completed']} completed."
    )


def _offer_projection(ctx: Context) -> None:
    from dsh.capability.todo.projection import todos_unit

    ctx.require(ProjectionRegistry).register(todos_unit())
