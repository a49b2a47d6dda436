"""A plugin that has every command approved."""

from __future__ import annotations

from typing import Any

from dsh.execution.tools.events import TOOLS_PRE_EXECUTE, Allow, Ask
from dsh.kernel import Context

name = "gate"


def apply(ctx: Context) -> None:
    def gate(call: Any, next: Any) -> Any:
        return Ask("commands need a yes") if call.name == "bash" else Allow()

    ctx.on(TOOLS_PRE_EXECUTE, gate)
