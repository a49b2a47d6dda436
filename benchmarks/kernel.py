"""Figures of the kernel, with its peers measured beside it in the same run.

``python benchmarks/kernel.py [--json] [--rounds N] [--only NAME]``. Every figure is the median
of its rounds, the smallest beside it; rounds of all kernels alternate, so that a busy machine
slows all of them. Peers that are not installed or refuse this interpreter are named, not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

PEERS = {
    "dsh": "peers.dsh_kernel",
    "deepseek-cordis": "peers.deepseek",
    "cordis-python": "peers.cordis_python",
}
BUDGETS = {
    "import ms": 25,
    "mount 1,000 ms": 30,
    "unmount 1,000 ms": 35,
    "swap 1,000 ms": 50,
    "emit to 100 us": 15,
    "async waterfall 10 us": 20,
    "sync waterfall 10 us": 8,
    "effect + undo us": 6,
    "KiB per plugin": 2,
    "mount 4,000 / 1,000": 4.5,
    "unmount 4,000 / 1,000": 4.5,
    "swap 4,000 / 1,000": 4.5,
}
Sample = dict[str, float]


def bodies(count: int) -> list[Callable[[Any], None]]:
    """Make ``count`` different plugins that do nothing, outside of what is measured."""

    def make() -> Callable[[Any], None]:
        def body(ctx: Any) -> None: ...

        return body

    return [make() for _ in range(count)]


async def lifecycle(kernel: Any, count: int) -> Sample:
    """Mount, swap the service of, and unmount ``count`` plugins."""
    root, label = kernel.root(), f"{count:,} ms"
    plain, needy = bodies(count), bodies(count)
    gc.collect()
    start = time.perf_counter()
    fibers = [kernel.mount(root, body, None) for body in plain]
    for fiber in fibers:
        await kernel.settle(fiber)
    mounted = time.perf_counter() - start
    gc.collect()
    start = time.perf_counter()
    for disposal in [kernel.dispose(fiber) for fiber in fibers]:
        await disposal
    unmounted = time.perf_counter() - start
    provision = kernel.provide(root, "bench", 1)
    fibers = [kernel.mount(root, body, "bench") for body in needy]
    for fiber in fibers:
        await kernel.settle(fiber)
    gc.collect()
    swap = time.perf_counter()
    await kernel.withdraw(provision)
    for fiber in fibers:
        await kernel.settle(fiber)
    kernel.provide(root, "bench", 2)
    for fiber in fibers:
        await kernel.settle(fiber)
    swapped = time.perf_counter()
    for disposal in [kernel.dispose(fiber) for fiber in fibers]:
        await disposal
    return {
        f"mount {label}": mounted * 1e3,
        f"unmount {label}": unmounted * 1e3,
        f"swap {label}": (swapped - swap) * 1e3,
    }


async def dispatch(kernel: Any) -> Sample:
    """Dispatch events, and register and undo an effect."""
    found: Sample = {}
    root = kernel.root()

    def listener(_: object) -> None: ...

    async def around(_: object, next: Callable[[], Awaitable[int]]) -> int:
        return await next()

    def around_sync(_: object, next: Callable[[], int]) -> int:
        return next()

    for _ in range(100):
        kernel.on(root, listener, "emit")
    for _ in range(10):
        kernel.on(root, around, "waterfall")
        kernel.on(root, around_sync, "waterfall_sync")
    found["emit to 100 us"] = loop_us(kernel.emitter(root), 1_000)
    found["async waterfall 10 us"] = await loop_async_us(kernel.async_waterfall(root), 2_000)
    sync = kernel.sync_waterfall(root)
    if sync is not None:
        found["sync waterfall 10 us"] = loop_us(sync, 2_000)
    found["effect + undo us"] = loop_us(kernel.effect_and_undo(root), 3_000)
    return found


def loop_us(call: Callable[[], object], count: int) -> float:
    """Return microseconds a call."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count * 1e6


async def loop_async_us(call: Callable[[], Awaitable[object]], count: int) -> float:
    """Return microseconds an awaited call."""
    start = time.perf_counter()
    for _ in range(count):
        await call()
    return (time.perf_counter() - start) / count * 1e6


async def memory(kernel: Any, count: int = 1_000) -> Sample:
    """Return what a mounted plugin holds."""
    root = kernel.root()
    plain = bodies(count)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    fibers = [kernel.mount(root, body, None) for body in plain]
    for fiber in fibers:
        await kernel.settle(fiber)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    for disposal in [kernel.dispose(fiber) for fiber in fibers]:
        await disposal
    return {"KiB per plugin": held / count / 1024}


def import_ms(module: str, cache: str) -> Sample:
    """Import a kernel, compiled before, in a fresh interpreter that has asyncio already."""
    code = (
        "import asyncio, logging, time; start = time.perf_counter(); "
        f"import {module}; print((time.perf_counter() - start) * 1e3)"
    )
    env = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
        )
    return {"import ms": float(done.stdout)}


def measure(kernels: list[Any], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Run all rounds, alternating between the kernels."""
    found: dict[str, dict[str, list[float]]] = {kernel.name: {} for kernel in kernels}
    with tempfile.TemporaryDirectory() as cache:
        for kernel in kernels * rounds:
            samples = found[kernel.name]
            for part in (
                import_ms(kernel.module, cache),
                asyncio.run(lifecycle(kernel, 1_000)),
                asyncio.run(lifecycle(kernel, 4_000)),
                asyncio.run(dispatch(kernel)),
                asyncio.run(memory(kernel)),
            ):
                for name, value in part.items():
                    samples.setdefault(name, []).append(value)
    for samples in found.values():
        for step in ("mount", "unmount", "swap"):
            # each round's ratio, so that a slow phase of the machine cancels out
            samples[f"{step} 4,000 / 1,000"] = [
                large / small
                for large, small in zip(
                    samples.pop(f"{step} 4,000 ms"), samples[f"{step} 1,000 ms"], strict=True
                )
            ]
    return found


def load(only: str | None) -> tuple[list[Any], list[str]]:
    """Load the kernels; say which are left out, and why."""
    kernels: list[Any] = []
    left_out: list[str] = []
    for name, module in PEERS.items():
        if only is not None and name != only:
            continue
        try:
            kernels.append(import_module(module).Adapter())
        except (ImportError, SyntaxError) as error:
            python = ".".join(map(str, sys.version_info[:2]))
            left_out.append(f"{name}: not measured on Python {python}: {error}")
    return kernels, left_out


def show(found: dict[str, dict[str, list[float]]], left_out: list[str]) -> None:
    """Print one row a figure: median (smallest) a kernel, the budget, the ratio to each peer."""
    own, *peers = found
    heads = [f"{name:>24}" for name in found] + [f"{'ours / ' + name:>24}" for name in peers]
    print(f"{'median (smallest)':<26}{'budget':>8}" + "".join(heads))
    for figure, budget in BUDGETS.items():
        cells = []
        medians = {name: samples.get(figure) for name, samples in found.items()}
        for values in medians.values():
            text = "-" if not values else f"{statistics.median(values):.2f} ({min(values):.2f})"
            cells.append(f"{text:>24}")
        mine = medians[own]
        for name in peers:
            theirs = medians[name]
            ratio = statistics.median(mine) / statistics.median(theirs) if mine and theirs else None
            cells.append(f"{'-' if ratio is None else f'{ratio:.2f}':>24}")
        print(f"{figure:<26}{budget:>8}" + "".join(cells))
    for line in left_out:
        print(line)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print all samples as JSON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=sorted(PEERS), help="measure one kernel")
    options = parser.parse_args()
    kernels, left_out = load(options.only)
    found = measure(kernels, options.rounds)
    if options.json:
        print(json.dumps({"samples": found, "budgets": BUDGETS, "left_out": left_out}, indent=1))
    else:
        show(found, left_out)


if __name__ == "__main__":
    main()
