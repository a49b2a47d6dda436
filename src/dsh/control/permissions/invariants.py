"""The row ``permission-invariants``: refuses the record of a preset that nobody configured.

For tests, and to find a plugin that breaks a log; off unless ``DSH_SESSION_INVARIANTS=1``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh.control.permissions.events import PERMISSION_PRESET
from dsh.control.permissions.service import PermissionPresetService
from dsh.kernel import INTERNAL_DISPATCH
from dsh.state.session.events import SESSION_EVENT
from dsh.state.session.nesting import BrokenInvariant

if TYPE_CHECKING:
    from dsh.kernel import Context, Dispatching

name = "permission-invariants"
inject = (PermissionPresetService,)


def apply(ctx: Context) -> None:
    """Check each event before it is committed; the table of an older session may be another."""
    presets = ctx.require(PermissionPresetService)

    def dispatching(event: Dispatching) -> None:
        if event.name != SESSION_EVENT.name:
            return
        session, appended = event.payload.session, event.payload.event
        if appended["type"] != PERMISSION_PRESET.name:
            return
        if (preset := appended["data"]["preset"]) not in presets.names:
            problem = f"no preset is called {preset!r}"
            raise BrokenInvariant(session.id, appended["seq"], appended["type"], problem)

    ctx.on(INTERNAL_DISPATCH, dispatching)
