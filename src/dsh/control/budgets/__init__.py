"""Limits of what sessions and their agents use. The plugin is `dsh.control.budgets.keeper`."""

from __future__ import annotations

from dsh.control.budgets.events import (
    BUDGET_LIMIT,
    BUDGET_REACHED,
    BUDGET_SPENT,
    BudgetLimit,
    BudgetReached,
    BudgetSpent,
)
from dsh.control.budgets.service import AgentCapReached, Budgets, BudgetUsage

__all__ = [
    "BUDGET_LIMIT",
    "BUDGET_REACHED",
    "BUDGET_SPENT",
    "AgentCapReached",
    "BudgetLimit",
    "BudgetReached",
    "BudgetSpent",
    "BudgetUsage",
    "Budgets",
]
