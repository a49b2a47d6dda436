"""Start a profile: compose it, read the app's words, check the route, then boot the tree."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsh.base.errors import DshError
from dsh.loader.compose import Composition, compose_profile
from dsh.loader.environment import LaunchEnvironment, load_environment, publish_user_values
from dsh.loader.home import resolve_dsh_home
from dsh.loader.say import say
from dsh.product.cli.args import Invocation
from dsh.product.cli.modes import mode_problem
from dsh.product.cli.overlays import launcher_overlays


def run_profile(invocation: Invocation) -> int:
    """Start the profile that a command line names, and run it to its end.

    Returns:
        The exit code.
    """
    home = resolve_dsh_home()
    try:
        composition = compose_profile(invocation.name, home, patches=invocation.patches)
        if composition.unavailable is not None:
            say(composition.unavailable)
            return 1
        if not composition.rows:
            say(_nothing_to_start(composition))
            return 1
        from dsh.product.cli.app import parse_app_args

        parsed = parse_app_args(composition.cli, invocation.args, invocation.name)
    except DshError as error:
        say(str(error))
        return 1
    if parsed.exit_code is not None:
        return parsed.exit_code
    return start(
        composition, home, argv=invocation.args, parsed=parsed.value, strict=invocation.strict
    )


def _nothing_to_start(composition: Composition) -> str:
    profile = composition.profile
    return (
        f'profile "{profile.name}" has no rows, so there is nothing to start; list bundles in '
        f"{profile.folder / 'profile.json'}, or insert rows by a patch"
    )


def start(
    composition: Composition,
    home: Path,
    *,
    argv: Sequence[str] = (),
    parsed: Any = None,
    strict: bool = False,
) -> int:
    """Check and boot a composed profile, and run it to its end.

    Args:
        composition: What to mount.
        home: The home folder.
        argv: The words for the app.
        parsed: What the app's command made of them; its ``model``, ``provider``, ``cwd`` and
            ``no_save``, where it has them, are heeded here.
        strict: Rows of third parties that fail are fatal, too.

    Returns:
        The exit code.
    """
    if not getattr(parsed, "no_save", False):
        for notice in composition.profile.notices:
            say(notice)
    for warning in composition.warnings:
        say(warning)
    environment = load_environment(home, Path.cwd(), warn=say)
    if overlays := launcher_overlays(environment):
        composition = composition.with_overlays(overlays)
    problem = mode_problem(environment) or _route_problem(composition, home, environment, parsed)
    if problem is not None:
        say(problem)
        return 1
    publish_user_values(environment)
    site = composition.profile.folder / "site"
    if site.is_dir():
        # Behind the installation, so that a profile never replaces a module of it.
        sys.path.append(str(site))
    from dsh.loader.boot import Launch, run
    from dsh.loader.host import CommandLine

    return run(
        Launch(
            composition=composition,
            home=home,
            environment=environment,
            cmdline=CommandLine(argv, parsed),
            cwd=getattr(parsed, "cwd", None),
            strict=strict,
            say=say,
            debug=os.environ.get("DSH_DEBUG") == "1",
        )
    )


def _route_problem(
    composition: Composition, home: Path, environment: LaunchEnvironment, parsed: Any
) -> str | None:
    from dsh.loader.static import static_scope
    from dsh.product.cli.preflight import check_route

    return check_route(
        composition.rows,
        static_scope(environment, home, getattr(parsed, "cwd", None)),
        environment,
        model=getattr(parsed, "model", None),
        provider=getattr(parsed, "provider", None),
    )
