"""Timing of commands and one way to print figures."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    wall_ms: float
    cpu_ms: float
    peak_mb: float


def compiled(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which modules are compiled once, as on a user's machine."""
    base = os.environ if env is None else env
    return {name: text for name, text in base.items() if name != "PYTHONDONTWRITEBYTECODE"}


def run_once(argv: Sequence[str], env: Mapping[str, str] | None = None) -> Sample:
    """Run a command to its end; fails when the command does."""
    env = compiled(env)
    start = time.perf_counter()
    process = subprocess.Popen(
        argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    if process.returncode:
        sys.exit(f"{argv!r} failed with {process.returncode}: {errors.decode()[-2000:]}")
    return Sample(
        wall_ms=wall * 1000,
        cpu_ms=(usage.ru_utime + usage.ru_stime) * 1000,
        peak_mb=usage.ru_maxrss / 1024,
    )


def median_of(samples: Sequence[Sample]) -> Sample:
    return Sample(
        wall_ms=statistics.median(sample.wall_ms for sample in samples),
        cpu_ms=statistics.median(sample.cpu_ms for sample in samples),
        peak_mb=statistics.median(sample.peak_mb for sample in samples),
    )


def table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells in columns; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        first, *rest = (
            cell.ljust(widths[0]) if i == 0 else cell.rjust(widths[i]) for i, cell in enumerate(row)
        )
        print("  ".join([first, *rest]))


@asynccontextmanager
async def lag_of_the_loop(lags: list[float]) -> AsyncIterator[None]:
    """Note how late, in milliseconds, a task wakes that sleeps for one."""

    async def watch() -> None:
        while True:
            start = time.perf_counter()
            await asyncio.sleep(0.001)
            lags.append((time.perf_counter() - start - 0.001) * 1000)

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
