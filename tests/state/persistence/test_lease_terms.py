"""Who gets the lease of a session, with a clock that the test turns."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dsh.base.values import changed
from dsh.state.persistence.errors import SessionHeld, SessionLeaseLost
from dsh.state.persistence.lease import LeaseRecord, LeaseTerms, Writer
from dsh.state.persistence.process import ProcessIdentity, this_process


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def one(clock: Clock) -> LeaseTerms:
    return LeaseTerms(15, clock=clock)


@pytest.fixture
def two(clock: Clock) -> LeaseTerms:
    return LeaseTerms(15, clock=clock)


def test_every_lease_of_a_session_has_a_higher_number(one: LeaseTerms, two: LeaseTerms) -> None:
    record = one.grant("s", None)
    numbers = [record.generation]
    for terms in (two, one, one, two):
        record = terms.grant("s", terms.ended(record))
        numbers.append(record.generation)
    assert numbers == [1, 2, 3, 4, 5]


def test_a_lease_lasts_its_time_and_can_then_be_taken(
    clock: Clock, one: LeaseTerms, two: LeaseTerms
) -> None:
    record = one.grant("s", None)
    clock.now += 14_999
    with pytest.raises(SessionHeld, match="since 1970-01-01 00:16:40 UTC") as caught:
        two.grant("s", record)
    assert caught.value.holder == this_process()
    clock.now += 1
    assert two.grant("s", record).generation == 2


def test_renewing_gives_the_whole_length_again(
    clock: Clock, one: LeaseTerms, two: LeaseTerms
) -> None:
    record = one.grant("s", None)
    clock.now += 10_000
    record = one.renewed(record)
    clock.now += 14_999
    with pytest.raises(SessionHeld):
        two.grant("s", record)
    assert (record.generation, record.since_ms) == (1, 1_000_000)


def test_a_lease_that_expired_unnoticed_still_counts(clock: Clock, one: LeaseTerms) -> None:
    record = one.grant("s", None)
    clock.now += 3_600_000
    one.permit("s", one.lease("s", record), record)


def test_a_lease_that_was_taken_over_permits_nothing(
    clock: Clock, one: LeaseTerms, two: LeaseTerms
) -> None:
    first = one.grant("s", None)
    lease = one.lease("s", first)
    clock.now += 20_000
    second = two.grant("s", first)
    for last in (second, two.ended(second), one.grant("s", two.ended(second)), None):
        with pytest.raises(SessionLeaseLost, match="taken over"):
            one.permit("s", lease, last)
    with pytest.raises(SessionHeld):
        one.permit("s", None, second)
    two.permit("s", two.lease("s", second), second)


def test_a_write_without_a_lease_needs_that_nobody_has_one(
    one: LeaseTerms, two: LeaseTerms
) -> None:
    record = one.grant("s", None)
    one.permit("s", None, record)
    two.permit("s", None, None)
    two.permit("s", None, one.ended(record))
    with pytest.raises(SessionHeld):
        two.permit("s", None, record)


def test_the_lease_of_a_process_that_ended_is_free_at_once(clock: Clock, two: LeaseTerms) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = changed(this_process(), pid=child.pid, started=started(child.pid))
        record = LeaseTerms(15, clock=clock, writer=Writer(process, "x")).grant("s", None)
        with pytest.raises(SessionHeld, match=f"number {child.pid} on"):
            two.grant("s", record)
        child.kill()
        child.wait()
    assert two.grant("s", record).generation == 2


def test_a_process_that_is_only_remains_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = changed(this_process(), pid=child.pid, started=started(child.pid))
        assert not process.is_gone()
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process.is_gone()


def test_only_a_process_of_this_machine_can_be_seen_to_be_gone() -> None:
    here = this_process()
    assert not here.is_gone()
    assert changed(here, started="0").is_gone()
    assert not changed(here, machine="elsewhere", started="0").is_gone()


def test_a_record_comes_back_as_it_was(one: LeaseTerms) -> None:
    record = one.grant("s", None)
    for each in (record, one.ended(record)):
        assert LeaseRecord.decode(each.encode() + b"   \n") == each


@pytest.mark.parametrize("line", [b"", b"{", b"\0\0", b"[]", b'{"generation":"x"}', b"{}", b"1"])
def test_what_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        LeaseRecord.decode(line)


def test_a_spoiled_record_is_free_and_ends_all_leases_before(
    clock: Clock, one: LeaseTerms, two: LeaseTerms
) -> None:
    lease = one.lease("s", one.grant("s", None))
    after = two.grant("s", two.unreadable())
    assert after.generation > lease.generation
    with pytest.raises(SessionLeaseLost):
        one.permit("s", lease, after)


def started(pid: int) -> str:
    from dsh.state.persistence.process import _started

    return _started(pid) or ""


def test_the_machine_differs_from_container_to_container() -> None:
    assert isinstance(this_process(), ProcessIdentity)
    if sys.platform == "linux":
        boot, _, namespace = this_process().machine.partition(":")
        assert len(boot) == 36
        assert namespace == str(os.stat("/proc/self/ns/pid").st_ino)
