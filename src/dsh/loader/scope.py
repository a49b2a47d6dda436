"""What expressions see at a place in the tree."""

from __future__ import annotations

import os
from collections.abc import Callable

from dsh.base.names import snake
from dsh.kernel import Context
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.expr_eval import ExprScope
from dsh.loader.home import resolve_dsh_home
from dsh.loader.static import home_path_of


def scope_for(ctx: Context, cwd: Callable[[], str] | None = None) -> ExprScope:
    """Return the scope of a context: its services, the launch environment, the home folder.

    Args:
        ctx: A service must be one that this context may read.
        cwd: The working folder; the process's when None.
    """
    environment = ctx.get(LaunchEnvironment)
    home = ctx.get("dsh_home_path")
    return ExprScope(
        variable=os.environ.get if environment is None else environment.value,
        home_path=home if home is not None else home_path_of(resolve_dsh_home()),
        service=lambda name: ctx.require(snake(name)),
        find=lambda name: ctx.get(snake(name)),
        base_url=ctx.base_url,
        cwd=cwd or os.getcwd,
    )
