"""Builtin ``cordis:include``: rows from a file, below one row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dsh.base.text import did_you_mean
from dsh.kernel import (
    INTERNAL_UPDATE,
    Context,
    ContextKey,
    Inject,
    Next,
    UpdateRequested,
    ValidationError,
)
from dsh.loader.entry import Entry
from dsh.loader.errors import IncludeCycle, LoaderError, PatchError
from dsh.loader.expr import Expr
from dsh.loader.group import Carrier
from dsh.loader.patch import Patch
from dsh.loader.resolve import base_folder
from dsh.loader.rows import Row, check_rows

if TYPE_CHECKING:
    from dsh.loader.file_tree import FileTree
    from dsh.loader.loader import Loader

FILES: Final[ContextKey[tuple[Path, ...]]] = ContextKey("loader.files", ())
"""The files that a context is inside of, outermost first."""

_FIELDS: Final = ("path", "initial", "patches", "enableLogs")


class IncludeOptions(NamedTuple):
    """The config of an include, checked."""

    path: str
    initial: list[Row] | None
    patches: list[Patch]
    enable_logs: bool | None


class IncludeConfig:
    """Checks the config of an include; expressions are not evaluated in it."""

    @staticmethod
    def validate(value: object) -> IncludeOptions:
        """Return the options that a raw config means.

        Raises:
            ValidationError: a field is missing, unknown or of the wrong type.
        """
        if not isinstance(value, Mapping):
            raise ValidationError([("an include needs a mapping with a path", "")])
        issues = [
            (f"unknown field{did_you_mean(str(key), _FIELDS)}", str(key))
            for key in value
            if key not in _FIELDS
        ]
        path, logs = value.get("path"), value.get("enableLogs")
        if isinstance(path, Expr):
            issues.append(("the path is taken literally and cannot be an expression", "path"))
        elif not isinstance(path, str) or not path:
            issues.append(("the path of a file is needed", "path"))
        if not isinstance(logs, bool | None):
            issues.append(("true or false is needed", "enableLogs"))
        initial, patches = value.get("initial"), value.get("patches")
        patches = [] if patches is None else patches
        issues += _list_issues(initial, patches)
        if issues:
            raise ValidationError(issues)
        return IncludeOptions(str(path), initial, patches, logs)


class IncludePlugin(Carrier):
    """Mounts the rows of a file and follows it."""

    name = "include"
    Config = IncludeConfig

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    async def apply(self, ctx: Context, config: IncludeOptions) -> None:
        """Mount the rows; new patches change them without a restart, another file restarts."""
        # Trees without files start without what files need.
        from dsh.loader.file_tree import FileTree

        loader = self._loader
        owner = ctx.fiber.entry if isinstance(ctx.fiber.entry, Entry) else None
        path = locate_file(config.path, ctx)
        chain = (*(ctx[FILES] or ()), path.resolve())
        if path.resolve() in chain[:-1]:
            raise IncludeCycle([str(each) for each in chain[chain.index(path.resolve()) :]])
        inside = ctx.extend(base_url=path.parent.absolute().as_uri() + "/", meta={FILES: chain})
        tree = FileTree(loader, inside, owner, path)
        raw_config = ctx.fiber.raw_config

        async def take_live(request: UpdateRequested, next: Next[Any]) -> Any:
            nonlocal raw_config
            options: IncludeOptions = request.config
            if locate_file(options.path, ctx) != path:
                return await next()
            try:
                await loader.queue.run("include", lambda: _repatch(tree, options))
            except BaseException:
                request.fiber.raw_config = raw_config
                raise
            request.fiber.config, raw_config = options, request.fiber.raw_config
            return None

        ctx.on(INTERNAL_UPDATE, take_live)
        ctx.defer(tree.close, f"save {path}")
        tree.logs = config.enable_logs
        await tree.load(config.initial, config.patches)
        ctx.inject([Inject.optional("hmr")], tree.follow)


async def _repatch(tree: FileTree, options: IncludeOptions) -> None:
    await tree.repatch(options.patches)
    tree.logs = options.enable_logs


def locate_file(path: str, ctx: Context) -> Path:
    """Return the file that an include's path means at a context.

    Raises:
        LoaderError: it is relative, and the tree has no folder.
    """
    file = base_folder(path) if path.startswith("file:") else Path(path)
    base = base_folder(ctx.base_url)
    if file is None or (base is None and not file.is_absolute()):
        raise LoaderError(f"the path {path!r} is relative, and the tree around it has no folder")
    return file if base is None else base / file


def _list_issues(initial: object, patches: object) -> list[tuple[str, str]]:
    issues: list[tuple[str, str]] = []
    if initial is not None:
        try:
            check_rows(initial, "initial")
        except PatchError as error:
            issues.append((str(error), "initial"))
    if not isinstance(patches, list) or not all(isinstance(each, Mapping) for each in patches):
        issues.append(("a list of patches is needed", "patches"))
    return issues
