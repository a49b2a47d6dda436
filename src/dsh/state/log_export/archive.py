"""A session as a ZIP: its log, those of its subagents, and the images they refer to."""

from __future__ import annotations

import asyncio
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

from dsh.base.errors import DshError
from dsh.state.log_export.jsonl import log_lines
from dsh.state.log_export.media import image_refs
from dsh.state.log_export.names import media_name, safe_name
from dsh.state.persistence.errors import SessionNotFound

if TYPE_CHECKING:
    from dsh.state.persistence.service import SessionPersistence
    from dsh.state.session.events import SessionEvent, SessionHeader
    from dsh.state.session.service import SessionStore

ReadImage: TypeAlias = "Callable[[Mapping[str, Any]], Awaitable[bytes]]"
"""Returns the bytes of an image by its reference."""


class DescendantMissing(DshError, LookupError):
    """A subagent's log is gone, so the archive would not be whole."""

    code = "SESSION_EXPORT_DESCENDANT_MISSING"

    def __init__(self, id: str, parent: str) -> None:
        super().__init__(
            f'the log of session "{id}", a subagent of "{parent}", is gone; '
            "export without descendants"
        )
        self.id = id
        self.parent = parent


class MediaUnavailable(DshError, RuntimeError):
    """The log refers to images, and nothing here can read them."""

    code = "SESSION_EXPORT_MEDIA_UNAVAILABLE"

    def __init__(self, count: int) -> None:
        noun = "an image" if count == 1 else f"{count} images"
        super().__init__(
            f"the log refers to {noun}, and there is no attachment store to read from; "
            "export as jsonl"
        )
        self.count = count


async def archive_chunks(
    persistence: SessionPersistence,
    id: str,
    *,
    descendants: bool = True,
    sessions: SessionStore | None = None,
    read_image: ReadImage | None = None,
) -> AsyncIterator[bytes]:
    """Yield the archive in parts; the next one is made when it is asked for.

    Nothing of it is held but the log at hand. Compression runs in a thread.

    Args:
        persistence: Where the sessions are.
        id: The session.
        descendants: Add the logs of its subagents, and of theirs.
        sessions: The live sessions; those exported are made durable first.
        read_image: Reads an image; without it, a log that refers to one is not exported.

    Raises:
        SessionNotFound: there is no such session.
        DescendantMissing: the log of a subagent is gone.
        MediaUnavailable: there are images, and no ``read_image``.
        Exception: what reading a log or an image raised.
    """
    sink = _Sink()
    # All that writing needs of a file is there.
    archive = zipfile.ZipFile(cast("IO[bytes]", sink), "w", zipfile.ZIP_DEFLATED)
    known: dict[str, Mapping[str, Any]] = {}
    headers = _lineage(id, await persistence.all()) if descendants else []
    for name, own_id, parent in [("session.jsonl", id, ""), *headers]:
        header, events = await _read(persistence, sessions, own_id, parent)
        known |= {ref["attachmentId"]: ref for ref in image_refs(events)}
        async for part in _add(archive, sink, name, log_lines(header, events)):
            yield part
    if known and read_image is None:
        raise MediaUnavailable(len(known))
    for ref in known.values():
        assert read_image is not None
        data = await read_image(ref)
        async for part in _add(archive, sink, f"media/{media_name(ref)}", [data]):
            yield part
    await asyncio.to_thread(archive.close)
    yield sink.take()


class _Sink:
    """A file that cannot seek, from which what was written is taken away."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing waits here."""

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


async def _add(
    archive: zipfile.ZipFile, sink: _Sink, name: str, parts: Iterable[bytes]
) -> AsyncIterator[bytes]:
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o600 << 16
    source = iter(parts)
    with archive.open(info, "w", force_zip64=True) as entry:

        def step() -> bool:
            part = next(source, None)
            if part is not None:
                entry.write(part)
            return part is not None

        while await asyncio.to_thread(step):
            if made := sink.take():
                yield made


async def _read(
    persistence: SessionPersistence, sessions: SessionStore | None, id: str, parent: str
) -> tuple[SessionHeader, Sequence[SessionEvent]]:
    live = None if sessions is None else sessions.get(id)
    if live is not None and sessions is not None:
        await sessions.flush(live)
    try:
        return await persistence.read_from(id, 0)
    except SessionNotFound:
        if not parent:
            raise
        raise DescendantMissing(id, parent) from None


def _lineage(id: str, headers: Iterable[SessionHeader]) -> list[tuple[str, str, str]]:
    """Return name, id and parent of each subagent below a session, parents first, oldest first."""
    children: dict[str, list[SessionHeader]] = {}
    for header in sorted(headers, key=lambda header: (header["createdAt"], header["id"])):
        if header.get("origin") == "subagent" and "parentSession" in header:
            children.setdefault(header["parentSession"], []).append(header)
    found: list[tuple[str, str, str]] = []
    seen, names = {id}, {""}
    stack = children.get(id, [])[::-1]
    while stack:
        header = stack.pop()
        if header["id"] in seen:
            continue
        seen.add(header["id"])
        name = _free(safe_name(header["id"]), names)
        found.append((f"subagents/{name}/session.jsonl", header["id"], header["parentSession"]))
        stack += children.get(header["id"], [])[::-1]
    return found


def _free(name: str, taken: set[str]) -> str:
    """Return a name that no other log of the archive has: ids may look alike when made safe."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    taken.add(free)
    return free
