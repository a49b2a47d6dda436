"""The command line of the headless profile: parsed before anything is mounted."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from dsh.product.headless.options import HeadlessStartup, OutputFormat

_HELP = """Give an agent one TASK in this folder and print its answer.

The task is the words of the command line, or standard input when there are none (or "-").
Exits 0 when the agent completed its turn, 1 when it did not, 130 after Ctrl+C, 143 after SIGTERM.
"""


@click.command(
    "dsh --profile headless", help=_HELP, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.argument("task", nargs=-1)
@click.option(
    "--output-format",
    type=click.Choice(["text", "json", "stream-json"]),
    default="text",
    show_default=True,
    help="text: the answer. json: one object at the end. stream-json: each event as it happens.",
)
@click.option("--model", metavar="[PROVIDER/]ID", help="Use this model instead of the default.")
@click.option(
    "--cwd",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False),
    help="Work in this folder instead of the current one.",
)
@click.option("--resume", metavar="SESSION|last", help="Go on with an earlier session.")
@click.option("--no-save", is_flag=True, help="Say nothing when the profile cannot be saved.")
def command(
    task: tuple[str, ...],
    output_format: OutputFormat,
    model: str | None,
    cwd: str | None,
    resume: str | None,
    no_save: bool,
) -> HeadlessStartup:
    """Return what the command line asks for."""
    if model is not None and not model.strip():
        raise click.BadParameter("a model id is needed", param_hint="--model")
    if resume is not None and not resume.strip():
        raise click.BadParameter("a session id or 'last' is needed", param_hint="--resume")
    return HeadlessStartup(
        task=_task(task),
        output_format=output_format,
        model=model,
        cwd=str(Path(cwd).resolve()) if cwd else None,
        resume=resume,
        no_save=no_save,
    )


def _task(words: tuple[str, ...]) -> str:
    text = " ".join(words)
    if text.strip() == "-" or (not words and not _interactive()):
        text = _read_standard_input()
    if not text.strip():
        raise click.UsageError(
            'a task is required: give it as words (dsh --profile headless "fix the tests") '
            "or on standard input"
        )
    return text


def _interactive() -> bool:
    return sys.stdin is None or sys.stdin.isatty()


def _read_standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8", "replace")
    except OSError as error:
        raise click.UsageError(
            f"standard input cannot be read: {os.strerror(error.errno or 0)}"
        ) from error
