"""The files of this machine, without a fence: ``fs-local``, and the engine of ``fs-sandbox``."""

from __future__ import annotations

import codecs
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from dsh.capability.fs import change, disk, paths
from dsh.capability.fs.place import Place
from dsh.capability.fs.service import (
    EditExpectation,
    FileSystem,
    FsEdit,
    FsEdited,
    FsEntry,
    FsInfo,
    FsLinkInfo,
    FsTarget,
    FsText,
    FsWritten,
    WriteExpectation,
)
from dsh.capability.fs.text import BOM, NUL_PROBE_BYTES, not_text
from dsh.capability.fs.worker import KeyedLocks, Stop, run_blocking

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal
    from dsh.capability.sandbox.service import ResolvedPolicy, SandboxMode
    from dsh.kernel import Context

_PIECE = 1 << 20
_MiB = 1 << 20


class LocalFsConfig(BaseModel):
    """Where relative paths start, and what is kept for comparisons."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    cwd: Path | None = None
    """Base of relative paths that come without one; the working directory of the process."""
    diff_basis_max_bytes: PositiveInt = Field(default=10 * _MiB, alias="diffBasisMaxBytes")
    """A write or edit tells the text before it only while both sides are below this size."""


class LocalFileSystem(FileSystem):
    """Reads and changes files of this machine as the process itself may."""

    Config = LocalFsConfig

    def __init__(self, ctx: Context, config: LocalFsConfig | None = None) -> None:
        super().__init__(ctx, config)
        config = config or LocalFsConfig()
        self._cwd = str(config.cwd.absolute()) if config.cwd else os.getcwd()
        self._basis_max = config.diff_basis_max_bytes
        self._locks = KeyedLocks()

    @property
    def sandbox_mode(self) -> SandboxMode | None:
        """See `FileSystem`."""
        return None

    async def resolve(
        self, path: str, *, cwd: str | None = None, signal: AbortSignal | None = None
    ) -> FsTarget:
        """See `FileSystem`."""
        base = cwd or self._cwd
        return await run_blocking(lambda _: paths.resolve(path, base), signal)

    def process_path(self, target: FsTarget) -> str:
        """See `FileSystem`."""
        return target.target_key

    def file_url(self, target: FsTarget) -> str:
        """See `FileSystem`."""
        return PurePath(target.target_key).as_uri()

    def contains(self, parent: FsTarget, child: FsTarget) -> bool:
        """See `FileSystem`."""
        return paths.contains(parent.target_key, child.target_key)

    async def stat(self, target: FsTarget, *, signal: AbortSignal | None = None) -> FsInfo | None:
        """See `FileSystem`."""
        return await run_blocking(lambda _: disk.look(target), signal)

    async def lstat(
        self, path: str, *, cwd: str | None = None, signal: AbortSignal | None = None
    ) -> FsLinkInfo | None:
        """See `FileSystem`."""
        joined = paths.absolute(path, cwd or self._cwd)
        return await run_blocking(lambda _: disk.look_at_link(joined), signal)

    async def open_text(
        self,
        path: str,
        *,
        cwd: str | None = None,
        stream_from: int | None = None,
        signal: AbortSignal | None = None,
    ) -> FsText:
        """See `FileSystem`."""
        base = cwd or self._cwd

        def work(stop: Stop) -> FsText:
            target = paths.resolve(path, base)
            found = disk.read_text_if_there(target, stop, stream_from)
            return FsText(target, *found)

        return await run_blocking(work, signal)

    async def read_text(self, target: FsTarget, *, signal: AbortSignal | None = None) -> str:
        """See `FileSystem`."""

        def work(stop: Stop) -> str:
            return disk.read_whole_text(target, stop)

        return await run_blocking(work, signal)

    async def stream_text(
        self, target: FsTarget, *, signal: AbortSignal | None = None
    ) -> AsyncIterator[str]:
        """See `FileSystem`."""

        def start(_: Stop) -> tuple[int, bytes]:
            fd, _status = disk.open_file(target)
            opened.append(fd)
            return fd, piece_of(fd)

        def piece_of(fd: int) -> bytes:
            with paths.errors_of(target.display_path):
                return os.read(fd, _PIECE)

        opened: list[int] = []
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            fd, piece = await run_blocking(start, signal)
            if piece.find(b"\0", 0, NUL_PROBE_BYTES) >= 0:
                raise not_text(target.display_path, "it holds NUL bytes")
            piece = piece.removeprefix(BOM)
            while piece:
                if text := _decode(decoder, piece, target, final=False):
                    yield text
                piece = await run_blocking(lambda _: piece_of(fd), signal)
            _decode(decoder, b"", target, final=True)
        finally:
            for fd in opened:
                os.close(fd)

    async def read_bytes(
        self, target: FsTarget, *, max_bytes: int, signal: AbortSignal | None = None
    ) -> bytes:
        """See `FileSystem`."""
        return await run_blocking(partial(disk.read_bytes, target, max_bytes), signal)

    async def list_dir(
        self, target: FsTarget, *, signal: AbortSignal | None = None
    ) -> list[FsEntry]:
        """See `FileSystem`."""
        return await run_blocking(partial(disk.list_dir, target), signal)

    async def write_text(
        self,
        target: FsTarget,
        content: str,
        *,
        expected: WriteExpectation = None,
        signal: AbortSignal | None = None,
        sandbox_policy: ResolvedPolicy | None = None,
    ) -> FsWritten:
        """See `FileSystem`."""

        def work(stop: Stop) -> FsWritten:
            place = self._place(target, sandbox_policy)
            return change.write(place, content, expected, basis_max=self._basis_max, stop=stop)

        async with self._locks.hold(target.target_key):
            return await run_blocking(work, signal)

    async def edit_text(
        self,
        target: FsTarget,
        edit: FsEdit,
        *,
        expected: EditExpectation = None,
        signal: AbortSignal | None = None,
        sandbox_policy: ResolvedPolicy | None = None,
    ) -> FsEdited:
        """See `FileSystem`."""

        def work(stop: Stop) -> FsEdited:
            place = self._place(target, sandbox_policy)
            return change.edit(place, edit, expected, basis_max=self._basis_max, stop=stop)

        async with self._locks.hold(target.target_key):
            return await run_blocking(work, signal)

    def _place(self, target: FsTarget, policy: ResolvedPolicy | None) -> Place:
        """Find where a change of ``target`` takes place now. Blocks; runs in a worker thread.

        A provider that confines overrides this: it is the one way to every mutation.
        """
        return unfenced(target)


def unfenced(target: FsTarget) -> Place:
    """Return the place of a target as its path leads now, anywhere on this machine."""
    with paths.errors_of(target.display_path):
        key = paths.identity(target.display_path)
    parts = tuple(part for part in key.split("/") if part)
    return Place("/", parts, target.display_path, fenced=False)


def _decode(
    decoder: codecs.IncrementalDecoder, piece: bytes, target: FsTarget, *, final: bool
) -> str:
    try:
        return decoder.decode(piece, final)
    except UnicodeDecodeError as error:
        raise not_text(target.display_path, "it holds invalid UTF-8") from error


plugin = LocalFileSystem
