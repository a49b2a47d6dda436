"""The boot audit: which rows did not come up, why, and what to do about each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from dsh.base.errors import message_of
from dsh.base.names import camel
from dsh.kernel import Fiber, FiberState, InactiveEffect, Missing, Service, ValidationError
from dsh.loader.entry import Entry
from dsh.loader.errors import BootFailed, EntryError, ExprError

if TYPE_CHECKING:
    from dsh.loader.loader import Loader


class Problem(NamedTuple):
    """One row that is not active."""

    id: str
    name: str
    text: str
    """What is wrong with it, in one line, without its name."""
    cause: BaseException | None
    pending: bool = False
    entry: Entry | None = None
    """The row's entry, while it is still in the tree."""
    missing: tuple[Missing, ...] = ()
    """What a pending row waits for."""

    def __str__(self) -> str:
        return f'row "{self.id}" ({self.name}) did not activate: {self.text}'


def audit(entries: Iterable[Entry]) -> list[Problem]:
    """Return a problem for each enabled row that is not active: failed ones first."""
    problems = [found for entry in entries if (found := _look(entry)) is not None]
    return sorted(problems, key=lambda problem: problem.pending)


async def leave_out(loader: Loader) -> list[Problem]:
    """Take the rows that are not active and may be left out from the tree.

    Those that are still loading stay: they may yet come up.

    Returns:
        What is wrong with each of them.
    """
    overdue = loader.overdue()
    problems = [
        problem
        for problem in audit(loader.entries())
        if problem.entry is not None
        and loader.may_leave_out(problem.entry)
        and problem.entry not in overdue
    ]
    for problem in problems:
        # A tree that goes meanwhile takes them along.
        with suppress(InactiveEffect):
            await loader.remove(problem.id)
    return problems


def boot_failed(problems: list[Problem]) -> BootFailed:
    """Return the error that a host reports: one line a problem."""
    causes = [problem.cause for problem in problems if problem.cause is not None]
    return BootFailed(problem_lines(problems), causes)


def problem_lines(problems: Sequence[Problem]) -> list[str]:
    """Return one line a problem.

    Rows that wait for other rows that did not come up are summed up in one line.
    """
    roots = [problem for problem in problems if not problem.pending]
    waiting = [problem for problem in problems if problem.pending]
    if not roots:
        roots = _waiting_for_nobody(waiting) or waiting
        waiting = [problem for problem in waiting if problem not in roots]
    lines = _by_cause(roots)
    if len(lines) > 1:
        lines.insert(0, f"{len(roots)} entries did not activate")
    if waiting:
        ids = ", ".join(problem.id for problem in waiting)
        noun = "row waits" if len(waiting) == 1 else "rows wait"
        lines.append(f"{len(waiting)} more {noun} for services in consequence: {ids}")
    return lines


def _waiting_for_nobody(waiting: list[Problem]) -> list[Problem]:
    """Return the rows that wait for a service which none of the other waiting rows is."""
    promised = {_service_of(problem) for problem in waiting}
    return [
        problem
        for problem in waiting
        if any(each.service not in promised for each in problem.missing)
    ]


def _service_of(problem: Problem) -> str | None:
    """Return the service that a row's plugin is, when it is a service class."""
    fiber = problem.entry.fiber if problem.entry is not None else None
    callback = fiber.runtime.callback if fiber is not None and fiber.runtime is not None else None
    if isinstance(callback, type) and issubclass(callback, Service):
        return callback.name
    return None


def _by_cause(problems: list[Problem]) -> list[str]:
    """Return a line for each problem; rows that wait for just the same share one."""
    together: dict[str, list[Problem]] = {}
    for number, problem in enumerate(problems):
        key = problem.text if problem.pending else str(number)
        together.setdefault(key, []).append(problem)
    lines: list[str] = []
    for group in together.values():
        if len(group) == 1:
            lines.append(str(group[0]))
        else:
            ids = ", ".join(f'"{problem.id}"' for problem in group)
            lines.append(f"rows {ids} did not activate: {group[0].text}")
    return lines


def problems_of(error: BaseException) -> list[Problem]:
    """Return a problem for each row behind an error of a tree's mount."""
    if isinstance(error, BaseExceptionGroup):
        return [problem for member in error.exceptions for problem in problems_of(member)]
    if isinstance(error, EntryError):
        cause = error.__cause__ or error
        inner = problems_of(cause) if _holds_entries(cause) else []
        return inner or [Problem(error.id, error.name, describe(cause), cause)]
    return []


def describe(error: BaseException) -> str:
    """Return the deepest cause of a failure in one line."""
    if isinstance(error, ValidationError):
        return "; ".join(
            f"config.{path}: {message}" if path else f"config: {message}"
            for message, path in error.issues
        )
    if isinstance(error, ExprError):
        bare = ExprError(error.problem, error.source, error.column)
        return f"{error.field}: {bare}" if error.field else str(bare)
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(describe(member) for member in error.exceptions)
    if error.__cause__ is not None:
        own, deeper = _line(message_of(error)), describe(error.__cause__)
        return own if deeper in own else f"{own}: {deeper}"
    text = _line(message_of(error))
    name = type(error).__name__
    # A bare builtin error says little without its class: KeyError's text is only the key.
    plain = type(error).__module__ == "builtins" and name not in text
    return f"{name}: {text}" if plain else text


def _holds_entries(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_holds_entries(member) for member in error.exceptions)
    return isinstance(error, EntryError)


def _look(entry: Entry) -> Problem | None:
    fiber = entry.fiber
    if entry.left_out is not None:
        cause = entry.left_out.__cause__ or entry.left_out
        return Problem(entry.full_id, entry.name, describe(cause), cause, entry=entry)
    try:
        if not entry.should_run:
            return None
    except ExprError as error:
        return Problem(entry.full_id, entry.name, describe(error), error, entry=entry)
    if fiber is None or fiber.uid is None:
        if entry.group.going:
            return None  # the whole tree goes
        return Problem(entry.full_id, entry.name, "its plugin is gone", None, entry=entry)
    if fiber.state is FiberState.FAILED and fiber.error is not None:
        inner = problems_of(fiber.error) if _holds_entries(fiber.error) else []
        text = "; ".join(map(str, inner)) or describe(fiber.error)
        return Problem(entry.full_id, entry.name, text, fiber.error, entry=entry)
    if fiber.state is FiberState.ACTIVE:
        return None
    missing = tuple(fiber.explain())
    text = _waiting(fiber, missing)
    return Problem(
        entry.full_id, entry.name, text, None, pending=True, entry=entry, missing=missing
    )


def _waiting(fiber: Fiber, missing: tuple[Missing, ...]) -> str:
    if not missing:
        return (
            f"it is still {fiber.state.label}; its setup has to end: work that goes on belongs "
            "into ctx.spawn()"
        )
    names = ", ".join(camel(each.service) for each in missing)
    reasons = "; ".join(dict.fromkeys(_reason(each) for each in missing))
    return (
        f"pending (waiting for service(s): {names}): {reasons}. "
        "add a row that provides what is missing, or set disabled: true where it is not needed"
    )


def _reason(missing: Missing) -> str:
    service = camel(missing.service)
    if missing.reason.startswith("absent"):
        return missing.reason.replace("absent", f"no row provides {service}", 1)
    return f"{service}: {missing.reason}"


def _line(text: str) -> str:
    return " ".join(text.split())
