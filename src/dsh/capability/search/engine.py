"""Searching by a child process: ripgrep, or the stand-in that takes the same options."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Literal

from dsh.base.signal import AbortedError
from dsh.base.values import value
from dsh.capability.search.records import parse_lines, parse_paths
from dsh.capability.search.service import (
    FileQuery,
    Found,
    LineQuery,
    Matched,
    SearchEngine,
    SearchError,
)
from dsh.capability.subprocess.service import (
    Collect,
    ExecutableNotFound,
    FileGrants,
    ProcessHandle,
    SpawnSpec,
    SubprocessError,
    SubprocessRuntime,
)

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal

EngineName = Literal["auto", "ripgrep", "python"]
"""``auto`` is ripgrep where it is installed, else the stand-in."""

VERSION_CONTROL = (".git", ".svn", ".hg", ".bzr", ".jj", ".sl")
"""Folders that are never searched for files."""

_READING = FileGrants(read=("/",), write=())
"""All that a search may do. Without it ripgrep could read dsh's own environment in /proc, and a
program of that name that a command put into a folder on PATH would run unconfined."""
_NO_FILES = ("--glob=!/proc", "--glob=!/sys", "--glob=!/dev")
"""For a search of everything: what the kernel shows there is no file, and may have no end."""
_PIECE = 1 << 16
_SHOWN_CHARS = 2000
_NOT_READ = re.compile(r".*\(os error \d+\)")
_BAD_PATTERN = (
    "regex parse error",
    "error parsing glob",
    "not allowed in a regex",
    "exceeds size limit",
    "regex could not be compiled",
)
_STAND_IN = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from pygrep.__main__ import main; raise SystemExit(main(sys.argv[1:]))"
)


@value
class Bounds:
    """What one search process may use."""

    output_bytes: int
    stderr_bytes: int
    grace_s: float


@value
class _Answer:
    output: bytes
    unreadable: int


class ProcessEngine(SearchEngine):
    """Runs a program that understands ripgrep's options, one process a search.

    Args:
        subprocess: Starts the program.
        command: Returns the program and its first arguments, asked before each search.
        bounds: Limits of a process.
    """

    def __init__(
        self,
        subprocess: SubprocessRuntime,
        command: Callable[[AbortSignal | None], Awaitable[Sequence[str]]],
        bounds: Bounds,
    ) -> None:
        self._subprocess = subprocess
        self._command = command
        self._bounds = bounds

    async def files(self, query: FileQuery, signal: AbortSignal | None) -> Found:
        """See `SearchEngine`."""
        excluded = [f"!**/{name}{rest}" for name in VERSION_CONTROL for rest in ("", "/**")]
        options = [
            "--files",
            "--null",
            *(f"--glob={glob}" for glob in (*query.globs, *excluded)),
            "--no-ignore",
            "--hidden",
        ]
        answer = await self._run(options, query.scope.cwd, query.scope.path, signal)
        paths = await asyncio.to_thread(parse_paths, answer.output)
        return Found(paths, answer.unreadable)

    async def lines(self, query: LineQuery, signal: AbortSignal | None) -> Matched:
        """See `SearchEngine`."""
        options = [
            "--json",
            f"--regexp={query.pattern}",
            *(f"--glob={glob}" for glob in query.globs),
            *(["--text"] if query.scope.is_file else []),
        ]
        answer = await self._run(options, query.scope.cwd, query.scope.path, signal)
        matches = await asyncio.to_thread(parse_lines, answer.output)
        return Matched(matches, answer.unreadable)

    async def _run(
        self, options: Sequence[str], cwd: str, path: str, signal: AbortSignal | None
    ) -> _Answer:
        _check_words([*options, path])
        if os.path.join(cwd, path) in ("/", "/."):
            options = [*options, *_NO_FILES]
        try:
            command = await self._command(signal)
            handle = self._subprocess.spawn(
                SpawnSpec(
                    argv=[*command, "--no-config", *options, "--", path],
                    cwd=cwd,
                    grace_s=self._bounds.grace_s,
                    signal=signal,
                    grants=_READING if self._subprocess.grants_enforcement() else None,
                    stdin="ignore",
                    stdout="pipe",
                    stderr=Collect(max_bytes=self._bounds.stderr_bytes, keep="head"),
                )
            )
            return await self._answer(handle, signal)
        except AbortedError as error:
            raise _aborted() from error
        except SubprocessError as error:
            if signal is not None and signal.aborted:
                raise _aborted() from error
            raise SearchError(
                f"the search could not run: {error.message}", code="SEARCH_FAILED"
            ) from error

    async def _answer(self, handle: ProcessHandle, signal: AbortSignal | None) -> _Answer:
        try:
            output = await self._read(handle)
            ended = await handle.wait()
        except BaseException:
            handle.terminate()
            await handle.wait_for_exit()
            raise
        if signal is not None and signal.aborted:
            raise _aborted()
        complaint = handle.collected_stderr.text() if handle.collected_stderr else ""
        if ended.exit_code in (0, 1):
            return _Answer(output, 0)
        return _Answer(output, _tolerated(complaint, ended.exit_code))

    async def _read(self, handle: ProcessHandle) -> bytes:
        await handle.started()
        assert handle.stdout is not None  # the spec asked for a pipe
        pieces, size = list[bytes](), 0
        while piece := await handle.stdout.read(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > self._bounds.output_bytes:
                raise SearchError(
                    f"the search found more than {self._bounds.output_bytes} bytes of output; "
                    "narrow it by path, include or a longer pattern",
                    code="SEARCH_RAW_OUTPUT_OVERFLOW",
                )
        return b"".join(pieces)


def engine_for(name: EngineName, subprocess: SubprocessRuntime, bounds: Bounds) -> SearchEngine:
    """Return the engine of a name; which program that is shows when it is first used."""

    async def ripgrep(signal: AbortSignal | None) -> Sequence[str]:
        return [await subprocess.resolve_executable("rg", signal=signal)]

    async def python(_: AbortSignal | None) -> Sequence[str]:
        return [sys.executable, "-I", "-S", "-c", _STAND_IN, os.path.dirname(__file__)]

    async def auto(signal: AbortSignal | None) -> Sequence[str]:
        try:
            return await ripgrep(signal)
        except ExecutableNotFound:
            return await python(signal)

    commands = {"auto": auto, "ripgrep": ripgrep, "python": python}
    return ProcessEngine(subprocess, commands[name], bounds)


def _check_words(words: Sequence[str]) -> None:
    """Refuse what no command line can carry."""
    for word in words:
        try:
            possible = b"\0" not in os.fsencode(word)
        except UnicodeEncodeError:
            possible = False
        if not possible:
            raise SearchError(
                "the pattern or path has a character that cannot be searched for: NUL or a lone "
                "surrogate",
                code="SEARCH_INVALID_PATTERN",
            )


def _tolerated(complaint: str, exit_code: int | None) -> int:
    """Return how many paths could not be read, when that was the only problem.

    Raises:
        SearchError: it was not.
    """
    text = complaint.strip()
    if any(sign in text for sign in _BAD_PATTERN):
        raise SearchError(
            f"the pattern is not valid: {text[:_SHOWN_CHARS]}", code="SEARCH_INVALID_PATTERN"
        )
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and all(map(_NOT_READ.fullmatch, lines)):
        return len(lines)
    detail = text[:_SHOWN_CHARS] or f"exit code {exit_code}"
    raise SearchError(f"the search failed: {detail}", code="SEARCH_FAILED")


def _aborted() -> SearchError:
    return SearchError("the search was aborted", code="SEARCH_ABORTED")
