"""What expressions see before a tree is mounted; imports nothing of the kernel."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dsh.loader.environment import LaunchEnvironment
from dsh.loader.expr_eval import ExprScope


def static_scope(environment: LaunchEnvironment, home: Path, cwd: str | None = None) -> ExprScope:
    """Return a scope without services, for what is decided before anything is mounted."""

    def missing(name: str) -> object:
        raise LookupError(f"no service {name!r} is there before the tree is mounted")

    return ExprScope(
        variable=environment.value,
        home_path=home_path_of(home),
        service=missing,
        find=lambda _: None,
        cwd=os.getcwd if cwd is None else partial(str, cwd),
    )


def home_path_of(home: Path) -> Callable[..., str]:
    """Return the function behind ``dshHomePath(...)``."""

    def dsh_home_path(*segments: str) -> str:
        return os.path.join(home, *segments)  # noqa: PTH118 - the text is the result

    return dsh_home_path
