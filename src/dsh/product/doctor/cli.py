"""The command line ``dsh doctor``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dsh.loader.say import flat, say
from dsh.product.cli.words import Words, WordsError, command_help, read_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dsh.product.doctor.findings import Case, Finding, Look


def main(argv: list[str]) -> int:
    """Run ``dsh doctor``.

    Args:
        argv: What follows ``doctor`` on the command line.

    Returns:
        The exit code: 1 when an error was found, or the words make no sense.
    """
    try:
        words = read_words("doctor", argv)
    except WordsError as error:
        return _fail(str(error))
    if words is None:
        sys.stdout.write(command_help("doctor"))
        return 0
    if words.args:
        return _fail(f"unexpected {words.args[0]!r}; a profile is named by --profile <name>")
    if words.values("--patch") and words.value("--profile") is None:
        return _fail("--patch goes with --profile <name>: it changes the rows of one profile")
    return _examine(words)


def _examine(words: Words) -> int:
    from dsh.product.doctor.findings import Finding, examine
    from dsh.product.doctor.report import has_errors

    case = _case(words)
    findings: list[Finding] = []

    def stuck() -> None:
        what = "a plugin blocks the event loop, so that nothing else can run"
        remedy = "switch off rows of plugins that are not dsh's, one after the other"
        findings.append(Finding("error", f"profile {case.profile}", what, remedy=remedy))
        _print(words, findings)

    for finding in examine(case, _looks(case, stuck)):
        findings.append(finding)  # noqa: PERF402 - `stuck` prints those that are there by then
    _print(words, findings)
    return 1 if has_errors(findings) else 0


def _case(words: Words) -> Case:
    from pathlib import Path

    from dsh.loader.environment import load_environment
    from dsh.loader.home import resolve_dsh_home
    from dsh.product.doctor.findings import Case
    from dsh.product.tree.redact import redactor

    home, heard = resolve_dsh_home(), list[str]()
    try:
        cwd = Path.cwd()
    except OSError:
        # It was deleted, which a look of its own tells.
        cwd = home
    environment = load_environment(home, cwd, warn=heard.append)
    name = words.value("--profile")
    patches = tuple(words.values("--patch"))
    return Case(
        home=home,
        cwd=cwd,
        environment=environment,
        heard=tuple(heard),
        redact=redactor(
            home,
            environment,
            profiles=_folders(home / "profiles"),
            files=map(Path, patches),
        ),
        profile=name,
        patches=patches,
    )


def _folders(place: Path) -> list[Path]:
    try:
        return sorted(place.iterdir())
    except OSError:
        return []


def _looks(case: Case, stuck: Callable[[], None]) -> Iterator[tuple[str, Look]]:
    from dsh.product.doctor import home, installation, profiles, sessions

    yield installation.TOPIC, installation.look_at_python
    yield installation.TOPIC, installation.look_at_tools
    yield installation.TOPIC, installation.look_at_disk
    yield installation.TOPIC, installation.look_at_working_folder
    yield home.TOPIC, home.look_at_home
    yield home.TOPIC, home.look_at_documents
    yield home.TOPIC, home.look_at_env_files
    yield home.TOPIC, home.look_at_leftovers
    yield sessions.TOPIC, sessions.look_at_sessions
    if case.profile is None:
        from dsh.product.doctor.sandbox import look_at_sandbox

        yield "sandbox", look_at_sandbox
        yield "profiles", profiles.look_at_profiles
        return
    from dsh.product.doctor.running import look_at_profile

    name = case.profile
    yield f"profile {name}", lambda each: look_at_profile(each, name, stuck)


def _print(words: Words, findings: list[Finding]) -> None:
    if words.flag("--json"):
        from dsh.base.json import dumps
        from dsh.product.doctor.report import as_data

        text = dumps(as_data(words.value("--profile"), findings)).decode() + "\n"
    else:
        from dsh.product.doctor.report import as_text
        from dsh.product.tree.text import Page

        text = as_text(findings, Page.of(sys.stdout))
    print(text, end="", flush=True)


def _fail(problem: str) -> int:
    say(flat(problem), "dsh doctor")
    return 1
