"""Figures of the loader: lists of rows as transactions, and edits of a running tree.

``python benchmarks/loader.py [--json] [--rounds N]``. Every figure is the median of its rounds,
the smallest beside it. An edit's time runs from the new file being in place to the row having the
new config, a reload's to the row running the new code; looking at files is part of both.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from dsh.kernel import Context
from dsh.loader.hmr.service import Hmr
from dsh.loader.loader import Loader, folder_url
from report import table

SIZES = (1_000, 4_000)
STEPS = ("mount", "apply again", "apply an edit", "create", "unmount")
Sample = dict[str, float]


def rows_of(count: int) -> list[dict[str, Any]]:
    """Rows of one plugin, half of them in groups of fifty."""
    plain = [
        {"id": f"r{n}", "name": "benchmark_row", "config": {"n": n}} for n in range(count // 2)
    ]
    inner = [
        {"id": f"i{n}", "name": "benchmark_row", "config": {"n": n}} for n in range(count // 2)
    ]
    groups = [
        {"id": f"g{n}", "name": "cordis:group", "group": True, "config": inner[n : n + 50]}
        for n in range(0, len(inner), 50)
    ]
    return [*plain, *groups]


async def timed(work: Any) -> float:
    gc.collect()
    start = time.perf_counter()
    await work
    return (time.perf_counter() - start) * 1e3


async def lists(count: int) -> Sample:
    """Mount rows, apply the same list and one with an edit, add a row, and unmount all."""
    root = Context()
    await root.plugin(Loader)
    loader = root.require(Loader)
    found = {"mount": await timed(loader.mount(rows_of(count)))}
    found["apply again"] = await timed(loader.mount(rows_of(count)))
    edited = rows_of(count)
    edited[0]["config"] = {"n": -1}
    found["apply an edit"] = await timed(loader.mount(edited))
    found["create"] = await timed(loader.create({"name": "benchmark_row"}))
    found["unmount"] = await timed(loader.mount([]))
    await root.dispose()
    return {f"{step} {count:,} ms": value for step, value in found.items()}


async def live(folder: Path) -> Sample:
    """Edit an included file, and the code of a row, under the watchers that a profile has."""
    root = Context()
    root.set_reporter(lambda error, *_: print(error, file=sys.stderr))
    rows, code = folder / "rows.yml", folder / "benchmark_code.py"
    seen: asyncio.Queue[Any] = asyncio.Queue()
    sys.modules["benchmark_queue"] = ModuleType("benchmark_queue")
    sys.modules["benchmark_queue"].__dict__["seen"] = seen
    rows.write_text(_ROWS.format(n=0))
    code.write_text(_CODE.format(n=0))
    await root.extend(base_url=folder_url(folder)).plugin(Loader)
    loader = root.require(Loader)
    await loader.mount(
        [
            {"id": "watch", "name": "dsh.loader.hmr.plugin"},
            {"id": "code", "name": "./benchmark_code.py"},
            {"id": "rows", "name": "cordis:include", "config": {"path": "rows.yml"}},
        ]
    )
    await root.require(Hmr).watching.wait()
    await root.require(Hmr).quiesce()
    while not seen.empty():
        seen.get_nowait()
    found = {
        "edit of rows to applied ms": await _edit(rows, _ROWS.format(n=1), seen, "config 1"),
        "edit of code to reloaded ms": await _edit(code, _CODE.format(n=1), seen, "code 1"),
    }
    await root.dispose()
    return found


async def _edit(path: Path, text: str, seen: asyncio.Queue[Any], awaited: str) -> float:
    new = path.with_suffix(".new")
    new.write_text(text)
    start = time.perf_counter()
    os.replace(new, path)  # as editors do
    async with asyncio.timeout(20):
        while await seen.get() != awaited:
            pass
    return (time.perf_counter() - start) * 1e3


_ROWS = "- {{id: a, name: ./benchmark_code.py, config: {n}}}\n"
_CODE = """
from benchmark_queue import seen

def apply(ctx, config):
    seen.put_nowait("code {n}" if config is None else f"config {{config}}")
"""


def measure(rounds: int) -> dict[str, list[float]]:
    """Run all rounds."""
    module = ModuleType("benchmark_row")

    def apply(ctx: Any, config: Any) -> None: ...

    module.__dict__["apply"] = apply
    sys.modules[module.__name__] = module
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        sample: Sample = {}
        for size in SIZES:
            sample |= asyncio.run(lists(size))
        small, large = (f"{size:,} ms" for size in SIZES)
        for step in STEPS:
            sample[f"{step} 4,000 / 1,000"] = sample[f"{step} {large}"] / sample[f"{step} {small}"]
        with tempfile.TemporaryDirectory() as folder:
            sample |= asyncio.run(live(Path(folder)))
        for name, value in sample.items():
            found.setdefault(name, []).append(value)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    found = measure(args.rounds)
    if args.json:
        print(json.dumps(found))
        return
    cells = [
        [name, f"{statistics.median(each):.2f}", f"{min(each):.2f}"] for name, each in found.items()
    ]
    table([["loader", "median", "smallest"], *cells])


if __name__ == "__main__":
    main()
