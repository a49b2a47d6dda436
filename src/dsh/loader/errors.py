"""What the loader and the launcher refuse, each with the fact a caller can act on."""

from __future__ import annotations

from dsh.base.errors import DshError, error_chain

__all__ = [
    "BootFailed",
    "BundleError",
    "ConfigFileError",
    "ConfigFileMissing",
    "ConfigReadOnly",
    "EntryError",
    "EntryMissing",
    "ExprError",
    "IncludeCycle",
    "LabelTaken",
    "LoaderError",
    "PatchError",
    "ProfileError",
    "ProfileMissing",
    "TreeBusy",
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


class ConfigFileMissing(LoaderError, FileNotFoundError):
    """An included file does not exist."""

    code = "CONFIG_FILE_MISSING"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"config file not found: {path}; create it, or give its include an initial list"
        )
        self.path = path


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


class EntryMissing(LoaderError, LookupError):
    """No row of the tree has this id."""

    code = "ENTRY_MISSING"

    def __init__(self, id: str) -> None:
        super().__init__(f"cannot resolve entry {id}")
        self.id = id


class TreeBusy(LoaderError, RuntimeError):
    """Code that a change of the tree waits for asked for a change that would wait for it."""

    code = "TREE_BUSY"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is being changed, or is part of what this code belongs to, and that waits "
            "for this code to end; make the change in a task of its own: ctx.spawn(...)"
        )


class LabelTaken(LoaderError, ValueError):
    """A row's services would go to a scope that another plugin provides them in.

    Attributes:
        row: Id of the row that was to be changed.
        service: The service, as files spell it.
        label: The scope.
        holder: Who provides it there.
    """

    code = "LABEL_TAKEN"

    def __init__(self, row: str, service: str, label: str, holder: str) -> None:
        super().__init__(
            f'row "{row}": service "{service}" cannot go to {label}, where {holder} provides it; '
            "isolate it under another label, or disable one of the two"
        )
        self.row, self.service, self.label, self.holder = row, service, label, holder


class IncludeCycle(LoaderError, ValueError):
    """A file includes itself, directly or through others.

    Attributes:
        chain: The files, from the outermost to the one that is there already.
    """

    code = "INCLUDE_CYCLE"

    def __init__(self, chain: list[str]) -> None:
        super().__init__(
            f"a file cannot include itself: {' -> '.join(chain)}; remove one of these includes"
        )
        self.chain = chain


class ConfigReadOnly(LoaderError, PermissionError):
    """A change of rows is not saved, because their file must not be written."""

    code = "CONFIG_READ_ONLY"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"cannot overwrite readonly config {path}; "
            "the change holds until the file is read again"
        )
        self.path = path


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
