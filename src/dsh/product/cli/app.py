"""An app's own command line: parsed by the launcher before anything is mounted."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from dsh.loader.errors import BundleError
from dsh.loader.say import say


class Parsed(NamedTuple):
    """What came of an app's command line."""

    value: Any = None
    """What the app's command returned."""
    exit_code: int | None = None
    """Set when there is nothing to start: help was shown, or the words made no sense."""


def parse_app_args(spec: str | None, argv: list[str], profile: str) -> Parsed:
    """Run an app's command over its words.

    Args:
        spec: ``module:command`` of the bundle: a click command whose callback returns the parsed
            value, or a callable that takes the words and returns it.
        argv: The words.
        profile: For texts.

    Raises:
        BundleError: the bundle names a command that does not exist.
    """
    if spec is None:
        return _without_command(argv, profile)
    command = _load(spec, profile)
    try:
        if hasattr(command, "main"):
            return _run_click(command, argv, profile)
        return Parsed(command(argv))
    except SystemExit as stop:
        code = stop.code
        if isinstance(code, str):
            say(code)
        return Parsed(exit_code=0 if code in (None, 0) else 1)


def _load(spec: str, profile: str) -> Any:
    module, _, attribute = spec.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ModuleNotFoundError, AttributeError) as error:
        raise BundleError(
            f'the command line {spec!r} of profile "{profile}" is missing: {error}'
        ) from error


def _run_click(command: Any, argv: list[str], profile: str) -> Parsed:
    import click

    program = f"dsh --profile {profile}"
    try:
        result = command.main(args=argv, prog_name=program, standalone_mode=False)
    except click.Abort:
        return Parsed(exit_code=130)
    except click.ClickException as error:
        hint = f" (see {program} --help)" if isinstance(error, click.UsageError) else ""
        say(f"{error.format_message()}{hint}")
        return Parsed(exit_code=1)
    # Outside of standalone mode click returns the code of --help instead of exiting.
    if isinstance(result, int):
        return Parsed(exit_code=result)
    return Parsed(result)


def _without_command(argv: list[str], profile: str) -> Parsed:
    if argv and argv[0] in {"-h", "--help"}:
        print(f'profile "{profile}" has no command line of its own')
        return Parsed(exit_code=0)
    return Parsed()
