"""What the loader and the launcher refuse, each with the fact a caller can act on."""

from __future__ import annotations

from dsh.base.errors import DshError, error_chain

__all__ = [
    "BootFailed",
    "BundleError",
    "ConfigFileError",
    "EntryError",
    "ExprError",
    "LoaderError",
    "PatchError",
    "ProfileError",
    "ProfileMissing",
    "UnknownPlugin",
]


class LoaderError(DshError):
    """Base of everything the loader refuses."""

    code = "LOADER"


class ConfigFileError(LoaderError, ValueError):
    """A YAML or JSON file of configuration cannot be used.

    Attributes:
        stage: ``read``, ``parse`` or ``validate``.
        path: The file, as it was named.
        line: 1-based line of the problem, when it is known.
        column: 1-based column of the problem, when it is known.
    """

    code = "CONFIG_FILE"

    def __init__(
        self,
        stage: str,
        path: str,
        problem: str,
        *,
        what: str = "config file",
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        where = path if line is None else f"{path}:{line}:{column}"
        if stage == "validate":
            super().__init__(problem if path in problem else f"{where}: {problem}")
        else:
            super().__init__(f"failed to {stage} {what} {where}: {problem}")
        self.stage, self.path, self.problem = stage, path, problem
        self.line, self.column = line, column


class PatchError(LoaderError, ValueError):
    """A patch or a row has a shape that no tree can take."""

    code = "PATCH"


class BundleError(LoaderError):
    """A bundle that a profile lists cannot be found or used."""

    code = "BUNDLE"


class ProfileError(LoaderError):
    """A profile's name or manifest is unusable."""

    code = "PROFILE"


class ProfileMissing(ProfileError, LookupError):
    """No profile of this name exists, and no template makes one."""

    code = "PROFILE_MISSING"

    def __init__(self, profile: str, *, known: list[str], near: str | None) -> None:
        hint = f"; did you mean {near!r}?" if near else ";"
        super().__init__(
            f'profile "{profile}" does not exist{hint} profiles: {", ".join(known) or "none"}. '
            f"to make one of your own: dsh plugin --profile {profile} add <package>"
        )
        self.profile, self.known, self.near = profile, known, near


class ExprError(LoaderError, ValueError):
    """An expression does not parse, uses what is not allowed, or fails to evaluate.

    Attributes:
        problem: What is wrong, without position.
        source: The expression.
        column: 1-based column in the expression.
        row: Id of the row it stands in, when it stands in one.
        field: Where in the row.
    """

    code = "EXPR"

    def __init__(
        self, problem: str, source: str, column: int, *, row: str = "", field: str = ""
    ) -> None:
        where = f'row "{row}", {field}: ' if row else ""
        super().__init__(f"{where}!!js {_short(source)}, column {column}: {problem}")
        self.problem, self.source, self.column = problem, source, column
        self.row, self.field = row, field

    def inside(self, row: str, field: str) -> ExprError:
        """Return this error with the row and field it happened in."""
        return ExprError(self.problem, self.source, self.column, row=row, field=field)


class UnknownPlugin(LoaderError, LookupError):
    """A row names a plugin that nothing resolves.

    Attributes:
        specifier: The name as the row spells it.
    """

    code = "UNKNOWN_PLUGIN"

    def __init__(self, specifier: str, problem: str) -> None:
        super().__init__(f'cannot resolve plugin "{specifier}": {problem}')
        self.specifier = specifier


class EntryError(LoaderError):
    """A row failed while it was imported, mounted, updated or taken back.

    Attributes:
        stage: ``import``, ``apply``, ``dispose`` or ``rollback``.
        id: The row's id.
        name: The row's plugin name.
    """

    code = "ENTRY"

    def __init__(self, stage: str, id: str, name: str, cause: BaseException) -> None:
        super().__init__(f"failed to {stage} loader entry {id} ({name}): {error_chain(cause)}")
        self.stage, self.id, self.name = stage, id, name
        self.__cause__ = cause


class BootFailed(LoaderError):
    """The tree did not come up.

    Attributes:
        problems: One line for each row that is not active, or one for the whole tree.
        causes: The exceptions behind them, for the log.
    """

    code = "BOOT"

    def __init__(self, problems: list[str], causes: list[BaseException]) -> None:
        super().__init__("\n".join(problems))
        self.problems, self.causes = problems, causes


def _short(source: str) -> str:
    flat = " ".join(source.split())
    return repr(flat if len(flat) <= 160 else flat[:157] + "...")
