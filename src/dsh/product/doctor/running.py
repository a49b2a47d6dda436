"""Looks at one profile by mounting it: rows that fail or wait, the sandbox, the model route."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from dsh.base.errors import DshError
from dsh.loader.dump import dump_word
from dsh.loader.inspect import APP_STATE
from dsh.product.cli.modes import mode_problem
from dsh.product.cli.preflight import check_route
from dsh.product.doctor.findings import Case, Finding, broken
from dsh.product.doctor.profiles import composed, look_at_site, refused, skipped, upgrade_of
from dsh.product.doctor.sandbox import find_sandbox
from dsh.product.tree.live import LIMIT_S, Prepared, look_at, prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh.loader.trial import Trial

Row = Mapping[str, Any]

_VARIABLE: Final = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")
_MOST_IDS: Final = 8


def look_at_profile(
    case: Case, name: str, stuck: Callable[[], None], limit_s: float = LIMIT_S
) -> Iterator[Finding]:
    """Say what a profile composes to, then what comes up of it.

    Args:
        case: What to look at.
        name: The profile.
        stuck: Called when a plugin blocks the event loop; the process ends then.
        limit_s: How long the mount may take.
    """
    topic = f"profile {name}"
    try:
        prepared = prepare(name, case.home, case.patches)
    except DshError as error:
        yield refused(topic, error)
        return
    composition = prepared.composition
    yield composed(topic, composition)
    yield from skipped(topic, composition)
    yield from look_at_site(topic, composition.profile.folder)
    yield from upgrade_of(topic, composition)
    if composition.unavailable is not None:
        remedy = "use another profile, such as headless, until it is"
        yield Finding("error", topic, composition.unavailable, remedy=remedy)
    if not composition.rows:
        remedy = f"list bundles in its profile.json, or make it anew: dsh profile new {name}"
        yield Finding("error", topic, "it has no rows, so there is nothing to start", None, remedy)
        return
    found = chain(_before_mounting(topic, prepared), _mount(topic, prepared, stuck, limit_s))
    for finding in found:
        # Errors of plugins may quote configs, whose secrets are known since the composition.
        yield finding._replace(what=prepared.redact(finding.what))


def _before_mounting(topic: str, prepared: Prepared) -> Iterator[Finding]:
    from dsh.loader.static import static_scope

    environment = prepared.environment
    problem = mode_problem(environment)
    if problem is not None:
        yield Finding("error", topic, problem, remedy="correct or unset the variable")
    scope = static_scope(environment, prepared.home)
    try:
        problem = check_route(prepared.composition.rows, scope, environment)
    except Exception as error:
        yield broken("model", error)
        return
    if problem is None:
        yield Finding("ok", "model", "nothing is known to be missing for the default model")
    else:
        # A text of a missing key says what to do in its second half; that is the remedy here.
        what = problem.partition(": ")[0] if problem.startswith("no ") else problem
        yield Finding("error", "model", what, remedy=_key_remedy(problem))


def _key_remedy(problem: str) -> str:
    names = [each for each in _VARIABLE.findall(problem) if each != "DSH_HOME"]
    if not names:
        return "correct what the text names"
    name = names[0]
    return f"dsh credentials set {name}, or export {name}=... before the start"


def _mount(
    topic: str, prepared: Prepared, stuck: Callable[[], None], limit_s: float
) -> Iterator[Finding]:
    async def look(trial: Trial) -> list[Finding]:
        found = list(_rows(topic, trial, prepared))
        try:
            found += await find_sandbox(trial.root)
        except Exception as error:
            found.append(broken("sandbox", error))
        return found

    try:
        yield from look_at(prepared, look, stuck=stuck, limit_s=limit_s)
    except DshError as error:
        yield Finding("error", topic, str(error), remedy="correct the row that the text names")


def _rows(topic: str, trial: Trial, prepared: Prepared) -> Iterator[Finding]:
    top = trial.snapshot()["rows"]
    rows = list(_flat(top))
    composition = prepared.composition
    foreign = {
        inner["id"]
        for number, row in enumerate(top)
        if not composition.is_shipped(number)
        for inner in _flat([row])
    }
    states = [row["state"] for row in rows]
    active, waiting = states.count("active"), states.count(APP_STATE)
    what = f"{active} of {len(rows)} rows run"
    if waiting:
        what += f", {waiting} {'waits' if waiting == 1 else 'wait'} for the app's command line"
    if off := states.count("disabled"):
        what += f", {off} {'is' if off == 1 else 'are'} switched off"
    yield Finding("ok", topic, what)
    behind = _in_consequence(rows)
    for row in rows:
        finding = None if row["id"] in behind else _row(topic, row)
        if finding is not None and row["id"] in foreign:
            # A start reports it and goes on without the row.
            finding = finding._replace(level="warning")
        if finding is not None:
            yield finding
    if behind:
        shown = ", ".join(behind[:_MOST_IDS]) + (", ..." if len(behind) > _MOST_IDS else "")
        noun = "row waits" if len(behind) == 1 else "rows wait"
        yield Finding("note", topic, f"{len(behind)} {noun} in consequence: {shown}")
    for remark in trial.remarks():
        remedy = "the rows run all the same; what failed is in the text"
        yield Finding("warning", topic, remark, remedy=remedy)


def _flat(rows: Sequence[Row]) -> Iterator[Row]:
    for row in rows:
        yield row
        yield from _flat(row["rows"])


def _row(topic: str, row: Row) -> Finding | None:
    """Return what is wrong with a row by itself, if anything is."""
    where = f"row {row['id']} ({row['name']})"
    inside = row["id"].rpartition(":")[2]
    file = "in its file" if inside != row["id"] else "by a patch"
    off = f"or switch the row off {file}: - {{id: {dump_word(inside)}, disabled: true}}"
    state = row["state"]
    if state in {"failed", "gone"}:
        what = f"failed: {row['error']}"
        return Finding("error", topic, what, where, f"correct what it says, {off}")
    if state in {"loading", "unloading"}:
        what = f"is still {state}; its plugin does not come to an end"
        return Finding("error", topic, what, where, f"look at what its plugin waits for, {off}")
    if state != "pending":
        return None
    reasons = "; ".join(_reason(each) for each in row["waits"])
    if all(each["app"] for each in row["waits"]):
        what = f"waits for {reasons}, which may come with the app's command line"
        return Finding("note", topic, what, where, "start the app to see")
    what = f"waits for {reasons}"
    return Finding("error", topic, what, where, f"add a row that provides it, {off}")


def _reason(wait: Mapping[str, Any]) -> str:
    reason = wait["reason"].replace("absent", "no row provides it", 1)
    return f"service {wait['service']} ({reason})"


def _in_consequence(rows: Sequence[Row]) -> list[str]:
    """Return the rows that wait for rows which are told of themselves; a circle is not among them.

    What a start of the app may bring is not waited for here.
    """
    sources: dict[str, set[str]] = {}
    for row in rows:
        waits = [each["row"] for each in row["waits"] if not each["app"]]
        if row["state"] == "pending" and waits and all(waits):
            sources[row["id"]] = set(waits)
    told = {row["id"] for row in rows if row["state"] not in {"active", APP_STATE, "disabled"}}
    told -= set(sources)
    behind: list[str] = []
    while fresh := [own for own, of in sources.items() if of & told and own not in told]:
        told |= set(fresh)
        behind += fresh
    return behind
