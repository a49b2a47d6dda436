"""The command ``/budget``: shows what was used, and sets limits for the session or its tree."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, cast

from dsh.control.budgets.reached import amount
from dsh.control.commands.service import (
    Command,
    CommandFailure,
    CommandInput,
    CommandInvocation,
    CommandResult,
    CommandSuccess,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsh.control.budgets.events import BudgetScope, LimitName
    from dsh.control.budgets.service import Budgets, BudgetUsage

_NAMES: Final[dict[str, LimitName]] = {
    "turns": "turns",
    "steps": "steps",
    "tokens": "tokens",
    "money": "money",
    "wall": "wallMs",
    "agents": "agents",
    "depth": "depth",
}
_USAGE: Final = (
    "usage: /budget, or /budget [tree] turns|steps|tokens|money|wall <most>|off; wall takes a time "
    "such as 90s, 30m or 2h, and a tree has agents and depth, too"
)
_NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)([a-z]*)")
_FACTORS: Final = {"k": 1_000, "m": 1_000_000}
_TIMES: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


def budget_command(budgets: Budgets) -> Command:
    """Return the command for a runtime to register."""

    def run(invocation: CommandInvocation) -> CommandResult:
        words = invocation.raw_input.split()
        if not words:
            return CommandSuccess(_report(budgets, invocation))
        scope: BudgetScope = "tree" if words[0] == "tree" else "session"
        rest = words[1:] if words[0] in ("tree", "session") else words
        if len(rest) != 2 or rest[0] not in _NAMES:
            return CommandFailure(_USAGE)
        limit = _NAMES[rest[0]]
        try:
            most = _parse(limit, rest[1])
            seq = budgets.set_limit(invocation.agent, scope, limit, most)
        except ValueError as error:
            return CommandFailure(f"{error}; {_USAGE}")
        own = scope == "session"
        return CommandSuccess(_report(budgets, invocation), source_event_seq=seq if own else None)

    return Command(
        "budget",
        "Show what this session and its agents have used, and set limits",
        run,
        input=CommandInput("[tree] <limit> <most>|off"),
    )


def _parse(limit: LimitName, word: str) -> float | None:
    if word == "off":
        return None
    found = _NUMBER.fullmatch(word.lower().replace(",", "").replace("_", ""))
    factors = _TIMES if limit == "wallMs" else _FACTORS
    if found is None or (found[2] and found[2] not in factors):
        raise ValueError(f"{word!r} is no limit of {limit}")
    factor = factors.get(found[2], 1_000 if limit == "wallMs" else 1)
    number = float(found[1]) * factor
    return int(number) if number.is_integer() else number


def _report(budgets: Budgets, invocation: CommandInvocation) -> str:
    agent = invocation.agent
    return "\n".join(
        [
            _line(
                "this session", budgets.usage_of(agent.session), budgets.limits_of(agent, "session")
            ),
            _line(
                "with its agents", budgets.usage_of_tree(agent), budgets.limits_of(agent, "tree")
            ),
        ]
    )


def _line(whose: str, usage: BudgetUsage, limits: Mapping[LimitName, float]) -> str:
    used: dict[LimitName, float | None] = {
        "turns": usage.turns,
        "steps": usage.steps,
        "tokens": usage.tokens,
        "money": usage.cost,
        "wallMs": usage.wall_ms,
    }
    parts = []
    for limit, number in used.items():
        if number is None:
            part = f"cost unknown: {usage.unpriced} has no price"
        elif limit == "money" and not number and limit not in limits:
            continue
        else:
            part = amount(limit, number, usage.currency)
        if limit in limits:
            part += f" of {amount(limit, limits[limit], usage.currency)}"
        parts.append(part)
    parts += [f"at most {limits[name]:g} {name}" for name in _CAPS if name in limits]
    return f"{whose}: " + " · ".join(parts)


_CAPS: Final = cast("tuple[LimitName, ...]", ("agents", "depth"))
