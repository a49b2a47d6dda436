"""The task census: a test that leaves something running behind it fails.

Counts what a test may leave: tasks of its loop, threads, child processes. What a plugin may
leave on a context (effects, listeners) is counted by the ``root`` fixture.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

_GRACE_S = 2.0
"""How long something that is ending already may take to be gone."""


def task_names(tasks: set[asyncio.Task[object]]) -> list[str]:
    """Return what each unfinished task is called and where it waits."""
    return sorted(f"{task.get_name()}: {_place(task)}" for task in tasks if not task.done())


def _place(task: asyncio.Task[object]) -> str:
    frames = task.get_stack(limit=1)
    if not frames:
        return "not started"
    return f"{Path(frames[-1].f_code.co_filename).name}:{frames[-1].f_lineno}"


def live_threads() -> set[threading.Thread]:
    """Return the threads that run now, without those a loop's executor keeps for reuse."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}


def leaked_threads(before: set[threading.Thread]) -> list[str]:
    """Return the threads that outlive the test, after giving ending ones time to end."""
    end = time.monotonic() + _GRACE_S
    leaked = []
    for thread in live_threads() - before:
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            leaked.append(thread.name)
    return sorted(leaked)


def child_pids() -> set[int]:
    """Return the direct children of this process; empty where ``/proc`` is missing."""
    found: set[int] = set()
    for task in Path("/proc/self/task").glob("*"):
        try:
            found.update(int(pid) for pid in (task / "children").read_text().split())
        except OSError:
            continue
    return found


def leaked_children(before: set[int]) -> list[str]:
    """Return the child processes (zombies too) that outlive the test."""
    end = time.monotonic() + _GRACE_S
    while (left := child_pids() - before) and time.monotonic() < end:
        time.sleep(0.01)
    return sorted(f"{pid} {_command(pid)}" for pid in left)


def _command(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "?"
    return os.fsdecode(raw.replace(b"\0", b" ")).strip() or "(zombie)"
