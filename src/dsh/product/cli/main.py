"""Entry of the ``dsh`` command: each mode imports its own modules and no other's."""

from __future__ import annotations

import sys

from dsh.product.cli.args import SUBCOMMANDS, Invocation, UsageError, parse_args

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_INTERRUPT = 130
EXIT_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the process's exit code.

    Args:
        argv: The words after the program's name; those of the process when None.
    """
    try:
        try:
            code = _run(sys.argv[1:] if argv is None else argv)
        finally:
            _flush()
    except UsageError as error:
        _say(str(error))
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return EXIT_INTERRUPT
    except BrokenPipeError:
        # Whoever read our output is gone; the interpreter must not try to flush again.
        _silence()
        return EXIT_PIPE
    except OSError as error:
        # Files are told of where they are read; what is left is mostly output that nothing takes.
        _silence()
        what = f"cannot use {error.filename}" if error.filename else "cannot write the output"
        _say(f"{what}: {(error.strerror or str(error)).lower()}")
        return EXIT_FAILURE
    return code


def _run(argv: Sequence[str]) -> int:
    invocation = parse_args(argv)
    if invocation.mode == "version":
        from dsh import __version__

        print(__version__)
        return EXIT_OK
    if invocation.mode == "help":
        from dsh.product.cli.help import launcher_help

        print(launcher_help(), end="")
        return EXIT_OK
    if invocation.mode == "subcommand":
        return _subcommand(invocation)
    if invocation.mode in {"plugin", "plugin-help"}:
        return _plugin(invocation)
    if invocation.mode == "dump-config":
        from dsh.product.cli.dump import dump_config

        return dump_config(invocation)
    from dsh.loader.ending import end_threads, interrupts_end

    with interrupts_end(EXIT_INTERRUPT):
        from dsh.product.cli.run import run_profile

        return end_threads(run_profile(invocation))


def _subcommand(invocation: Invocation) -> int:
    from importlib import import_module

    from dsh.loader.ending import end_threads

    module, _ = SUBCOMMANDS[invocation.name]
    code: int = import_module(module).main(invocation.args)
    return end_threads(code)


def _plugin(invocation: Invocation) -> int:
    from dsh.product.plugins.cli import main as plugin

    if invocation.mode == "plugin-help":
        return plugin("", ["--help"])
    return plugin(invocation.name, invocation.args)


def _say(text: str) -> None:
    from dsh.loader.say import say

    say(text)


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _silence() -> None:
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    sys.exit(main())
