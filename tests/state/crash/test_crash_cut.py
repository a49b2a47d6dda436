"""A file that ends at every byte of its last three records, as the provider sees it.

All cuts are sessions below one root, so that each is damaged among many others too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from state_logs import call, chunk, open_turn, reply, say, whole_turn

from dsh.base.files import Disk, writing_through
from dsh.model.chunks import text_delta
from dsh.state.persistence.artifact.aside import kept_aside
from dsh.state.persistence.artifact.frames import compress
from dsh.state.persistence.artifact.layout import Encoding, artifact_path
from dsh.state.persistence.artifact.records import encode_events, encode_header
from dsh.state.session.events import SessionEvent, SessionHeader
from dsh.state.session.repair import interrupted_turn_closers
from dsh.state.session.session import Session
from dsh.testing.persistence.medium import Host, Medium

_CHUNKS = 5


class Layout(NamedTuple):
    """How a log is put into a file."""

    encoding: Encoding
    records_a_batch: int


class Cut(NamedTuple):
    """A session whose file ends early."""

    name: str
    path: Path
    data: bytes
    whole: int
    """How many bytes are whole records, or whole batches where these are compressed."""
    events: int
    """How many events these hold."""


class _Memory(Disk):
    """Does not wait for the disk: no machine stops here, and there are thousands of repairs."""

    def sync(self, fd: int) -> None:
        """Do nothing."""


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    with writing_through(_Memory()):
        yield


def a_log() -> Session:
    """A whole turn, and one that is cut in a run of chunks, a reply and the start of its tool."""
    session = Session.create("origin")
    whole_turn(session)
    open_turn(session, 2)
    say(session, "again \ud800")
    for number in range(_CHUNKS):
        chunk(session, text_delta(0, f"word {number} "), turn=2)
    reply(session, calls={"c1": "bash"})
    call(session, "c1", "bash")
    return session


def batches(session: Session, records: int) -> Iterator[Sequence[SessionEvent]]:
    """Yield the committed part as one batch, then the last three records in some batches."""
    events = session.events
    chunks = session.seq - 2 - _CHUNKS
    yield events[:chunks]
    last = [events[chunks:-2], events[-2:-1], events[-1:]]
    if records == 1:
        yield from last
    else:
        yield [event for record in last for event in record]


def cuts(root: Path, layout: Layout, session: Session) -> list[Cut]:
    """Write one file for each byte of the last three records."""
    pack: Callable[[bytes], bytes] = (
        compress if layout.encoding is Encoding.ZSTD else lambda data: data
    )
    parts = [
        (pack(encode_events(batch, pack=True)), batch)
        for batch in batches(session, layout.records_a_batch)
    ]
    body = b"".join(data for data, _ in parts)
    made = []
    for cut in range(len(parts[0][0]), len(body) + 1):
        name = f"s{cut:05}"
        header: SessionHeader = {"version": 0, "id": name, "createdAt": 1}
        head = pack(encode_header(header))
        path = artifact_path(root, header, layout.encoding)
        path.parent.mkdir(parents=True, mode=0o700)
        path.write_bytes(head + body[:cut])
        whole = events = 0
        for data, batch in parts:
            if whole + len(data) > cut:
                break
            whole, events = whole + len(data), events + len(batch)
        made.append(Cut(name, path, head + body[:cut], len(head) + whole, events))
    return made


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "layout",
    [Layout(Encoding.PLAIN, 1), Layout(Encoding.ZSTD, 1), Layout(Encoding.ZSTD, 3)],
    ids=["plain", "zstd", "zstd-one-frame"],
)
async def test_cut_anywhere_a_session_opens_is_repaired_once_and_goes_on(
    tmp_path: Path, layout: Layout
) -> None:
    origin = a_log()
    made = cuts(tmp_path, layout, origin)
    medium = Medium("dsh.state.persistence.jsonl:JsonlPersistence", {"root": str(tmp_path)})

    host = await Host(medium).open()
    assert {entry.damage for entry in await host.persistence.survey()} == {None}
    seen = {}
    for cut in made:
        seen[cut.name] = opened = await host.persistence.inspect(cut.name)
        assert cut.path.read_bytes() == cut.data
        is_whole = cut.whole == len(cut.data)
        assert (opened.damage is None) == is_whole
        if opened.damage is not None:
            assert opened.damage.lost_bytes == len(cut.data) - cut.whole
            assert "ends inside" in opened.damage.reason
        stored = await host.stored(cut.name)
        assert len(stored) >= cut.events
        assert stored == list(origin.events[: len(stored)])
        assert list(opened.events[: len(stored)]) == stored
        assert interrupted_turn_closers(opened.events) == []

    for cut in made:
        loaded = await host.persistence.load(cut.name)
        assert (loaded.damage, loaded.events) == (seen[cut.name].damage, seen[cut.name].events)
        assert cut.path.read_bytes().startswith(cut.data[: cut.whole])
        aside = [kept.read_bytes() for kept in kept_aside(cut.path)]
        assert aside == ([cut.data[cut.whole :]] if loaded.damage else [])
    await host.close()

    repaired = {cut.name: cut.path.read_bytes() for cut in made}
    again = await Host(medium).open()
    for cut in made:
        assert (await again.persistence.load(cut.name)).damage is None
        assert cut.path.read_bytes() == repaired[cut.name]
        session = await again.resume(cut.name)
        known = seen[cut.name].events
        assert list(session.events[: len(known)]) == list(known)
        say(session, "on we go")
    for cut in made:
        session = again.store.get(cut.name)
        assert session is not None
        await again.flush(session)
        assert cut.path.read_bytes().startswith(repaired[cut.name])
        assert await again.stored(cut.name) == list(session.events)
    await again.close()
