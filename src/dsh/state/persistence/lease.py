"""One writer a session: who has the right to write, since when, and who may take it over.

A lease is kept beside the session by each store, in its own form. A store that writes on behalf
of a lease checks in the same step that it is still the one in force, so that a writer that slept
through its time cannot write between the lines of its successor.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from dsh.base.clock import SYSTEM_CLOCK, Clock
from dsh.base.json import dumps, loads
from dsh.base.values import changed, value
from dsh.state.persistence.errors import SessionHeld, SessionLeaseLost
from dsh.state.persistence.process import ProcessIdentity, this_process

DEFAULT_LEASE_S = 15.0


@value
class Writer:
    """One store in one process.

    Attributes:
        process: The process.
        token: Tells the stores of one process apart.
    """

    process: ProcessIdentity
    token: str

    @classmethod
    def new(cls) -> Writer:
        """Name a store of this process."""
        return cls(this_process(), secrets.token_hex(8))


@value
class Lease:
    """The right of one writer to write to one session.

    Attributes:
        id: The session.
        writer: Whose right it is.
        generation: Counts the leases of the session; a later one ends all earlier ones.
    """

    id: str
    writer: Writer
    generation: int


@value
class LeaseRecord:
    """What is stored of the leases of a session: the last one.

    Attributes:
        generation: Its number.
        writer: Who has it; ``None`` after it was given up.
        since_ms: When it was granted.
        expires_ms: When others may take over, unless it is renewed.
    """

    generation: int
    writer: Writer | None
    since_ms: int
    expires_ms: int

    def encode(self) -> bytes:
        """Return the record as one line of JSON."""
        record: dict[str, Any] = {
            "generation": self.generation,
            "since": self.since_ms,
            "expires": self.expires_ms,
        }
        if self.writer is not None:
            process = self.writer.process
            record |= {
                "token": self.writer.token,
                "host": process.host,
                "machine": process.machine,
                "pid": process.pid,
                "started": process.started,
            }
        return dumps(record)

    @classmethod
    def decode(cls, line: bytes | str) -> LeaseRecord:
        """Read what `encode` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            record = loads(line)
            numbers = [record[key] for key in ("generation", "since", "expires")]
            if not all(type(number) is int for number in numbers):
                raise ValueError("a number of the lease is none")
            writer = _writer(record) if "token" in record else None
            return cls(numbers[0], writer, numbers[1], numbers[2])
        except (KeyError, TypeError) as error:
            raise ValueError("the lease has not the fields of one") from error


def _writer(record: Mapping[str, Any]) -> Writer:
    process = ProcessIdentity(
        str(record["host"]), str(record["machine"]), int(record["pid"]), str(record["started"])
    )
    return Writer(process, str(record["token"]))


def _is_gone(writer: Writer) -> bool:
    return writer.process.is_gone()


class LeaseTerms:
    """Decides who gets the lease of a session; the store keeps what is decided.

    Args:
        length_s: How long a lease lasts without being renewed.
        clock: Tells the time, which all writers of a store must agree on roughly.
        is_gone: Proves that a writer cannot come back; by default that its process ended.
        writer: On whose behalf; a new name for this process by default.

    Attributes:
        writer: On whose behalf leases are taken.
        length_s: How long a lease lasts without being renewed.
    """

    def __init__(
        self,
        length_s: float = DEFAULT_LEASE_S,
        *,
        clock: Clock = SYSTEM_CLOCK,
        is_gone: Callable[[Writer], bool] = _is_gone,
        writer: Writer | None = None,
    ) -> None:
        self.writer = Writer.new() if writer is None else writer
        self.length_s = length_s
        self._clock = clock
        self._is_gone = is_gone

    def grant(self, id: str, last: LeaseRecord | None) -> LeaseRecord:
        """Return the record of a new lease, to be stored before anybody acts on it.

        Args:
            id: The session.
            last: What is stored; ``None`` when nothing is.

        Raises:
            SessionHeld: another writer has the lease, and may be at work.
        """
        if last is not None:
            self._refuse_held(id, last)
        now = self._clock.now_ms()
        generation = 1 if last is None else last.generation + 1
        return LeaseRecord(generation, self.writer, now, now + self._length_ms())

    def permit(self, id: str, lease: Lease | None, last: LeaseRecord | None) -> None:
        """Refuse a write that somebody else's lease forbids.

        Args:
            id: The session.
            lease: The lease of the writer; ``None`` for a single write that needs only that
                nobody else is at work.
            last: What is stored; ``None`` when nothing is.

        Raises:
            SessionHeld: there is no lease, and another writer has one.
            SessionLeaseLost: the lease has ended.
        """
        if lease is None:
            if last is not None:
                self._refuse_held(id, last)
        elif not self.is_in_force(lease, last):
            raise self.lost(lease, last)

    def is_in_force(self, lease: Lease, last: LeaseRecord | None) -> bool:
        """Tell whether a lease is the last one; it may have expired if nobody took over."""
        return (
            last is not None
            and last.writer is not None
            and last.writer.token == lease.writer.token
            and last.generation == lease.generation
        )

    def renewed(self, last: LeaseRecord) -> LeaseRecord:
        """Return the record with its whole length before it again."""
        return changed(last, expires_ms=self._clock.now_ms() + self._length_ms())

    def ended(self, last: LeaseRecord) -> LeaseRecord:
        """Return the record as it is after its writer gave it up."""
        return changed(last, writer=None, expires_ms=self._clock.now_ms())

    def unreadable(self) -> LeaseRecord:
        """Return what stands for a record that a power failure spoiled.

        Its number is above that of every lease that can have been granted before.
        """
        now = self._clock.now_ms()
        return LeaseRecord(now, None, now, now)

    def lost(self, lease: Lease, last: LeaseRecord | None) -> SessionLeaseLost:
        """Return the error for the writer of a lease that is not the last one."""
        by = None if last is None or last.writer is None else last.writer.process
        return SessionLeaseLost(lease.id, by, None if last is None else last.since_ms)

    def holder(self, last: LeaseRecord | None) -> Writer | None:
        """Return the other writer that must be left at work; ``None`` when there is none."""
        if last is None or last.writer is None or last.writer.token == self.writer.token:
            return None
        if last.expires_ms <= self._clock.now_ms() or self._is_gone(last.writer):
            return None
        return last.writer

    def lease(self, id: str, record: LeaseRecord) -> Lease:
        """Return what the writer shows for a record that was granted to it."""
        return Lease(id, self.writer, record.generation)

    def _refuse_held(self, id: str, last: LeaseRecord) -> None:
        if (holder := self.holder(last)) is not None:
            raise SessionHeld(id, holder.process, last.since_ms)

    def _length_ms(self) -> int:
        return int(self.length_s * 1000)
