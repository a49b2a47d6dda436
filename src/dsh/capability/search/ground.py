"""Where a search call stands: its folder, and what it names below or outside of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dsh.capability.fs.service import FileSystem, FsError
from dsh.capability.search.query import scope_for
from dsh.capability.search.service import Scope, SearchError, SearchErrorCode

if TYPE_CHECKING:
    from dsh.capability.sandbox.service import SandboxPolicy
    from dsh.execution.tools.service import ToolRunContext


class Ground:
    """Finds the scope of a call.

    Args:
        fs: Tells whether the place exists.
        policy: Knows the workspace of a session; without it the session's own folder counts.
    """

    def __init__(self, fs: FileSystem, policy: SandboxPolicy | None) -> None:
        self._fs = fs
        self._policy = policy

    def base_for(self, run: ToolRunContext) -> str:
        """Return the folder that relative paths and results of a call refer to."""
        session = run.agent.session if run.agent else None
        if self._policy is not None:
            return str(self._policy.resolve(session).workspace_root)
        return (session.header.get("cwd") if session else None) or os.getcwd()

    async def scope(self, run: ToolRunContext, base: str, path: str | None) -> Scope:
        """Return where a call searches.

        Raises:
            SearchError: ``SEARCH_FAILED`` when there is nothing.
        """
        if path is None:
            return Scope(base, ".")
        try:
            target = await self._fs.resolve(path, cwd=base, signal=run.signal)
            info = await self._fs.stat(target, signal=run.signal)
        except FsError as error:
            aborted = error.code == "FS_ABORTED"
            code: SearchErrorCode = "SEARCH_ABORTED" if aborted else "SEARCH_FAILED"
            raise SearchError(error.message, code=code) from error
        if info is None:
            raise SearchError(
                f"there is nothing to search at {target.display_path!r}", code="SEARCH_FAILED"
            )
        if info.type == "directory" and f"{target.target_key}/".startswith("/proc/"):
            raise SearchError(
                f"{target.display_path!r} shows processes, not files; name a single file in it",
                code="SEARCH_FAILED",
            )
        if info.type == "other":
            # A pipe would be waited for, and a device may have no end.
            raise SearchError(
                f"{target.display_path!r} is neither a file nor a folder", code="SEARCH_FAILED"
            )
        return scope_for(base, target.display_path, is_file=info.type != "directory")
