"""The files of this machine behind the session's sandbox mode: the same fence as the shell's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dsh.capability.fs import paths
from dsh.capability.fs.local import LocalFileSystem, LocalFsConfig, unfenced
from dsh.capability.fs.place import Place
from dsh.capability.fs.service import FsError, FsTarget
from dsh.capability.sandbox.service import SandboxPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh.capability.sandbox.service import ResolvedPolicy, SandboxMode
    from dsh.kernel import Context


class SandboxedFileSystem(LocalFileSystem):
    """Reads everywhere; changes only what the mode in force opens.

    A change is judged by where its path leads at that moment, and is then made through the
    folder that was judged.
    """

    inject = (SandboxPolicy,)

    def __init__(self, ctx: Context, config: LocalFsConfig | None = None) -> None:
        super().__init__(ctx, config)
        self._policy = ctx.require(SandboxPolicy)

    @property
    def sandbox_mode(self) -> SandboxMode | None:
        """The mode of sessions that set none."""
        return self._policy.default_mode

    def _place(self, target: FsTarget, policy: ResolvedPolicy | None) -> Place:
        policy = policy or self._policy.resolve()
        if policy.mode == "danger-full-access":
            return unfenced(target)
        if policy.mode == "read-only":
            raise _denied(f"{target.display_path!r} cannot be changed: all files are read-only")
        with paths.errors_of(target.display_path):
            key = paths.identity(target.display_path)
            place = _below(policy.writable_roots, key, target.display_path)
        if place is None:
            leads = "" if key == target.display_path else f" leads to {key!r}, which"
            raise _denied(
                f"{target.display_path!r}{leads} is outside the writable workspace "
                f"{str(policy.workspace_root)!r}"
            )
        return place


def _denied(message: str) -> FsError:
    return FsError(message, code="FS_SANDBOX_DENIED")


def _below(roots: tuple[Path, ...], key: str, shown: str) -> Place | None:
    for root in map(str, roots):
        if paths.contains(root, key):
            return Place(root, _parts(os.path.relpath(key, root)), shown, fenced=True)
    # The same folder can have a second path that is no link, such as a bind mount.
    identities = {found for root in roots if (found := _identity(str(root)))}
    for folder in _ancestors(key):
        if _identity(folder) in identities:
            return Place(folder, _parts(os.path.relpath(key, folder)), shown, fenced=True)
    return None


def _parts(relative: str) -> tuple[str, ...]:
    return () if relative == "." else tuple(relative.split("/"))


def _ancestors(path: str) -> Iterator[str]:
    while True:
        yield path
        parent = os.path.dirname(path)
        if parent == path:
            return
        path = parent


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


plugin = SandboxedFileSystem
