"""What ``dsh plugin`` refuses; each becomes one line on stderr and an exit code."""

from __future__ import annotations

from dsh.base.errors import DshError


class PluginError(DshError):
    """Base of what ``dsh plugin`` refuses; nothing of the profile has changed.

    Attributes:
        exit_code: What the process returns.
    """

    code = "PLUGIN"
    exit_code = 1


class WordsError(PluginError):
    """The command line makes no sense; the message says what to write instead."""

    code = "USAGE"


class SpecError(PluginError, ValueError):
    """A package is named in a way that cannot be installed.

    Attributes:
        text: What was written.
    """

    code = "SPEC"

    def __init__(self, text: str, problem: str) -> None:
        super().__init__(f"{text!r}: {problem}")
        self.text = text


class BuildRefused(SpecError):
    """Installing this would run code of the package, which nobody allowed."""

    code = "BUILD_REFUSED"

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(
            text,
            f"is {kind}, and building a wheel of it runs its code; name a wheel, or allow it with "
            "--allow-build",
        )


class PackageRefused(PluginError):
    """A package installs, but this dsh cannot use it.

    Attributes:
        problems: A sentence for each, with the package's name.
    """

    code = "PACKAGE"

    def __init__(self, problems: list[str]) -> None:
        super().__init__(f"{'; '.join(problems)}. nothing was changed")
        self.problems = problems


class PipMissing(PluginError):
    """Neither the environment nor the system has a pip."""

    code = "PIP_MISSING"
    exit_code = 127

    def __init__(self) -> None:
        super().__init__(
            "there is no pip in the environment that dsh runs in, and no uv on PATH to fetch one; "
            "install pip there (python -m ensurepip), or install uv"
        )


class UvFailed(PluginError):
    """Uv could not fetch a pip; it has told why.

    Attributes:
        exit_code: Its exit code.
    """

    code = "UV_FAILED"

    def __init__(self, code: int) -> None:
        self.exit_code = code if code > 0 else 128 - code
        super().__init__(
            f"uv could not fetch a pip (exit code {self.exit_code}); nothing was changed"
        )


class PipFailed(PluginError):
    """Pip ended with an exit code of its own; it has told why.

    Attributes:
        exit_code: That code; a signal's number plus 128 when it was killed.
    """

    code = "PIP_FAILED"

    def __init__(self, where: str, code: int, *, allow_build: bool) -> None:
        self.exit_code = code if code > 0 else 128 - code
        wheels = "" if allow_build else ". a package without a wheel needs --allow-build"
        super().__init__(
            f"pip failed in profile directory {where} (exit code {self.exit_code}); nothing was "
            "changed. a constraint that pip speaks of is the version of a package that dsh has "
            f"itself, which plugins must work with{wheels}"
        )
