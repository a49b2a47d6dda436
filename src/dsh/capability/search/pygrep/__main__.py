"""The command line: the options of ripgrep that dsh uses, and nothing else."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field

from .globs import BadGlob, Rule, parse_rule
from .walk import Selection, walk

FOUND, NOTHING, FAILED = 0, 1, 2
"""Exit codes."""


@dataclass
class Options:
    """What the command line says."""

    files: bool = False
    hidden: bool = False
    ignore_files: bool = True
    binary: bool = False
    pattern: str | None = None
    globs: list[str] = field(default_factory=list)
    path: str = "."


def parse(argv: list[str]) -> Options:
    """Read the command line.

    Raises:
        ValueError: an option is unknown here.
    """
    options = Options()
    for index, word in enumerate(argv):
        if word == "--":
            options.path = argv[index + 1] if len(argv) > index + 1 else "."
            break
        name, _, value = word.partition("=")
        if name == "--regexp":
            options.pattern = value
        elif name == "--glob":
            options.globs.append(value)
        elif word == "--files":
            options.files = True
        elif word == "--hidden":
            options.hidden = True
        elif word == "--no-ignore":
            options.ignore_files = False
        elif word == "--text":
            options.binary = True
        elif word not in ("--no-config", "--json", "--null"):
            raise ValueError(f"unknown option {word!r}")
    return options


def main(argv: list[str]) -> int:
    """Run one search and return the exit code."""
    failures: list[str] = []

    def failed(path: bytes, error: OSError) -> None:
        failures.append(f"{os.fsdecode(path)}: {error.strerror} (os error {error.errno})")

    try:
        options = parse(argv)
        selection = Selection(
            overrides(options.globs), options.hidden, options.ignore_files, failed
        )
        run = list_files if options.files else search
        found = run(options, selection)
    except (BadGlob, ValueError) as error:
        failures, found = [str(error)], False
    sys.stdout.flush()
    for line in failures:
        sys.stderr.write(line.encode("utf-8", "replace").decode() + "\n")
    if failures:
        return FAILED
    return FOUND if found else NOTHING


def overrides(globs: list[str]) -> list[Rule]:
    """Read the globs of the command line.

    Raises:
        BadGlob: one is malformed.
    """
    rules = []
    for glob in globs:
        try:
            rule = parse_rule(os.fsencode(glob))
        except BadGlob as error:
            raise BadGlob(f"error parsing glob '{glob}': {error}") from error
        if rule is not None:
            rules.append(rule)
    return rules


def list_files(options: Options, selection: Selection) -> bool:
    """Write the selected files, each followed by NUL."""
    found = False
    for path in walk(os.fsencode(options.path), selection):
        sys.stdout.buffer.write(path + b"\0")
        found = True
    return found


def search(options: Options, selection: Selection) -> bool:
    """Write a record for each matching line of the selected files."""
    from .grep import search_file
    from .pattern import BadPattern, compile_pattern

    try:
        pattern = compile_pattern(options.pattern or "")
    except BadPattern as error:
        raise ValueError(f"regex parse error:\n    {options.pattern}\nerror: {error}") from error
    found = False
    for path in walk(os.fsencode(options.path), selection):
        try:
            records = search_file(path, pattern, binary=options.binary)
        except OSError as error:
            selection.failed(path, error)
            continue
        sys.stdout.writelines(records)
        found = found or bool(records)
    return found


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
