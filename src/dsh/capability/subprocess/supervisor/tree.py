"""The tree of processes below this one: who is in it, and signals to all of it."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple


class Process(NamedTuple):
    """One process, told apart from a later one with the same number by its start time."""

    pid: int
    parent: int
    start_time: bytes


def descendants(root: int, spare: frozenset[int] = frozenset()) -> list[Process]:
    """Return every process below ``root``, parents first.

    Args:
        root: The process whose descendants are wanted; itself not included.
        spare: Processes to leave out together with all below them.
    """
    children: dict[int, list[Process]] = {}
    for process in _all():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    below = [root]
    while below:
        for process in children.get(below.pop(), ()):
            if process.pid not in spare:
                found.append(process)
                below.append(process.pid)
    return found


def kill_below(spare: frozenset[int] = frozenset()) -> list[Process]:
    """Send SIGKILL to every process below this one; return those that were there.

    Args:
        spare: As in `descendants`.
    """
    found = descendants(os.getpid(), spare)
    for process in found:
        send(process, signal.SIGKILL)
    return found


def kill_children(spare: frozenset[int] = frozenset()) -> frozenset[int]:
    """Send SIGKILL to each child of this process and to the group it leads; return their pids.

    Much faster than a walk through the whole tree: a process that forks and exits all the time is
    gone from where a walk saw it before the signal arrives, but each exit makes its child ours.
    The numbers are safe to use, for nobody else gets the number of a child that was not reaped.
    """
    children = _children() - spare
    for pid in children:
        for kill in (os.kill, os.killpg):
            try:
                kill(pid, signal.SIGKILL)
            except OSError:
                continue
    return children


def _children() -> frozenset[int]:
    """Return this process's children, dead ones included; none where the kernel does not tell."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return frozenset(map(int, file.read().split()))
    except OSError:
        return frozenset()


def send(process: Process, number: int) -> None:
    """Send a signal, unless the process is gone; never to another one that got its number."""
    try:
        handle = os.pidfd_open(process.pid)
    except (OSError, AttributeError):
        _send_by_number(process, number)
        return
    try:
        if _start_time(process.pid) == process.start_time:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        return
    finally:
        os.close(handle)


def _send_by_number(process: Process, number: int) -> None:
    if _start_time(process.pid) == process.start_time:
        try:
            os.kill(process.pid, number)
        except OSError:
            return


def _all() -> list[Process]:
    """Return every process; a zombie may still have threads that run, and children."""
    seen = ((int(name), _stat(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return [Process(pid, int(fields[1]), fields[19]) for pid, fields in seen if fields]


def _start_time(pid: int) -> bytes | None:
    fields = _stat(pid)
    return fields[19] if fields else None


def _stat(pid: int) -> list[bytes] | None:
    """Return the fields after the command name, which may hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None
