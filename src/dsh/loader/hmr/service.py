"""The service ``hmr``: what it offers to those who own files that may change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from dsh.base.errors import DshError
from dsh.kernel import Effect, Service

Refresh: TypeAlias = Callable[[], Awaitable[object] | object]
"""Applies a file as it is now; raises when that cannot be done, and has changed nothing then."""


class HmrError(DshError):
    """Base of everything hot reload refuses or reports."""

    code = "HMR"


class PathTaken(HmrError, ValueError):
    """A file is registered already, by this or another spelling of its path.

    Attributes:
        path: The file.
    """

    code = "HMR_PATH_TAKEN"

    def __init__(self, path: str) -> None:
        super().__init__(f"config path already registered: {path!r}")
        self.path = path


class Hmr(Service):
    """Follows files, and lets those who own them take what changed.

    Attributes:
        base_dir: What relative paths are relative to.
    """

    name = "hmr"
    base_dir: Path

    def register_config(
        self, path: str | PathLike[str], refresh: Refresh, *, initial: bool = True
    ) -> Effect:
        """Call ``refresh`` whenever exactly this file appears, changes or goes.

        Neither the file nor its folders have to exist. Calls never overlap: changes during one
        lead to one more. What it raises is reported and told by ``hmr/config-update-failed``.

        Args:
            path: The file; a relative one is relative to ``base_dir``.
            refresh: Runs on behalf of the caller, whose unload waits for it.
            initial: Call it soon for a file that is there already, so that no edit is lost
                between the caller's own reading and the first look.

        Returns:
            The registration, of the calling plugin. Disposing it waits for a running refresh
            and for one that is due by then.

        Raises:
            PathTaken: the file is registered already.
        """
        raise NotImplementedError

    def linked(self, module: str) -> list[str]:
        """Return the watched modules that a module imports itself; none when it is unknown."""
        raise NotImplementedError

    async def scan(self) -> None:
        """Look for changes now; refreshes and reloads that they ask for are started."""
        raise NotImplementedError

    async def quiesce(self) -> None:
        """Wait until no refresh and no reload runs or is due."""
        raise NotImplementedError
