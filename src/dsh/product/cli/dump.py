"""``--dump-config``: print the composed rows of a profile without starting anything."""

from __future__ import annotations

from dsh.base.errors import DshError
from dsh.loader.compose import compose_profile
from dsh.loader.home import resolve_dsh_home
from dsh.loader.say import say
from dsh.product.cli.args import Invocation


def dump_config(invocation: Invocation) -> int:
    """Print the rows that boot would mount, or those of the bundles alone.

    What was skipped goes to stderr and is no failure.

    Returns:
        The exit code.
    """
    try:
        composition = compose_profile(
            invocation.name,
            resolve_dsh_home(),
            patches=invocation.patches,
            user_layers=not invocation.default_only,
        )
    except DshError as error:
        say(str(error))
        return 1
    for warning in (*composition.profile.notices, *composition.warnings):
        say(warning)
    print(composition.dump(), end="")
    return 0
