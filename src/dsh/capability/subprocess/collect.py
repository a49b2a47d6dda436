"""A bounded window on an output stream, with the whole of it in a file when it is longer."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from dsh.base.text import TextRetainer, inside_character, unfinished
from dsh.capability.subprocess.service import Collect, CollectedOutput, OutputSlice, Spill


class OutputWindow(CollectedOutput):
    """Keeps head and tail of a stream; every byte keeps its absolute position."""

    def __init__(self, collect: Collect, label: str) -> None:
        """Build an empty one.

        Args:
            collect: How much to keep, and where the rest goes.
            label: Start of the spill file's name.
        """
        self.total_bytes = 0
        self._max_bytes = collect.max_bytes
        self._kept = TextRetainer(collect.keep, collect.max_bytes)
        self._spill = _SpillFile(collect.spill, label) if collect.spill else None

    @property
    def omitted_bytes(self) -> int:
        """See `CollectedOutput`."""
        return self.total_bytes - self._kept.kept_bytes

    @property
    def spill_path(self) -> Path | None:
        """See `CollectedOutput`."""
        return self._spill.path if self._spill else None

    async def feed(self, data: bytes) -> None:
        """Add the next bytes; waits for the spill file, off the loop."""
        if self._spill:
            if not self._spill.begun and self.omitted_bytes == 0 and self._fits(data):
                self._keep(data)
                return
            held = b"" if self._spill.begun else self._kept.head + self._kept.tail
            await asyncio.to_thread(self._spill.write, held, data)
        self._keep(data)

    async def close(self) -> None:
        """Complete the spill file; a file that cannot be completed is withdrawn."""
        if self._spill and self._spill.begun:
            await asyncio.to_thread(self._spill.close)

    def read_from(self, offset: int) -> OutputSlice:
        """See `CollectedOutput`."""
        head, tail = self._kept.head, self._kept.tail
        tail_start = self.total_bytes - len(tail)
        if offset >= tail_start:
            data, lossy = tail[offset - tail_start :], False
        elif self.omitted_bytes == 0:
            data, lossy = head[offset:] + tail, False
        else:
            lossy = True
            data = head[offset:] + tail[inside_character(tail) :]
        kept = len(data) - unfinished(data)
        return OutputSlice(
            data[:kept].decode("utf-8", "replace"),
            max(offset, self.total_bytes) - (len(data) - kept),
            lossy,
            self.spill_path,
        )

    def text(self, *, gap: str = "") -> str:
        """See `CollectedOutput`."""
        return self._kept.text(gap=gap)

    def _fits(self, data: bytes) -> bool:
        return self.total_bytes + len(data) <= self._max_bytes

    def _keep(self, data: bytes) -> None:
        self._kept.feed(data)
        self.total_bytes = self._kept.total_bytes


class _SpillFile:
    """The whole stream on disk, until it outgrows its cap or the disk refuses."""

    def __init__(self, spill: Spill, label: str) -> None:
        self._max_bytes = spill.max_bytes
        self._label = label
        self._folder = spill.folder
        self._fd = -1
        self._size = 0
        self._file: Path | None = None
        self.begun = False
        # A drain that is cut short closes the file while a thread may still write to it.
        self._lock = threading.Lock()

    @property
    def path(self) -> Path | None:
        """The file; ``None`` before it is begun and after it was given up."""
        return self._file

    def write(self, held: bytes, data: bytes) -> None:
        """Append, after what memory held so far when this is the first write."""
        with self._lock:
            try:
                if not self.begun:
                    self.begun = True
                    self._create()
                    self._append(held)
                self._append(data)
            except OSError:
                self._give_up()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._fd >= 0:
                fd, self._fd = self._fd, -1
                try:
                    os.close(fd)
                except OSError:
                    self._give_up()

    def _create(self) -> None:
        file = self._folder / f"{self._label}-{uuid4().hex[:12]}.txt"
        self._fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file = file

    def _append(self, data: bytes) -> None:
        if self._fd < 0:
            return
        self._size += len(data)
        if self._size > self._max_bytes:
            self._give_up()
            return
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def _give_up(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            self._file = None
