"""The whole product over real HTTP, measured by the bench scripts that also measured upstream.

They stand beside the checkout (``../shared/bench``) or where ``DSH_BENCH`` says. With
``--upstream CMD`` (the ``dsh`` of the ``deepseek-harness-sdk`` wheel) both are measured in one
run and the ratio is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from report import compiled, table

BENCH = Path(os.environ.get("DSH_BENCH", Path(__file__).parents[2] / "shared" / "bench"))
FIGURES: list[tuple[str, tuple[str, ...], str]] = [
    ("start to first model request, s", ("onestep", "start_to_first_request_s"), "< 0.5"),
    ("one-step task, wall s", ("onestep", "wall_s"), ""),
    ("one-step task, peak MB", ("onestep", "peak_rss_mb"), "< 100"),
    ("read, bash, write, answer, wall s", ("multi", "wall_s"), ""),
    ("read step gap, 50 steps, first fifth, ms", ("loop", "read_50", "gap_first"), "< 5"),
    ("read step gap, 200 steps, last fifth, ms", ("loop", "read_200", "gap_last"), "< 5, flat"),
    ("bash step gap, 50 steps, ms", ("loop", "bash_50", "gap_med"), ""),
    ("20,000 chunks, first byte to exit, s", ("stream", "chunks_20000", "to_exit"), "< 1"),
    ("20,000 chunks, peak MB", ("stream", "chunks_20000", "rss"), ""),
]
SECTIONS = ("onestep", "multi", "loop", "stream")


def measure(dsh: str, runs: int, *extra: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        for section in SECTIONS:
            argv = [
                sys.executable,
                str(BENCH / "headless_bench.py"),
                "--dsh",
                dsh,
                "--work",
                f"{folder}/work",
            ]
            argv += ["--out", str(out), "--n", str(runs), *extra, section]
            done = subprocess.run(
                argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, env=compiled()
            )
            if done.returncode:
                last = done.stderr.decode().strip().splitlines()[-1]
                print(f"{section}: stopped early: {last[:200]}")
        return json.loads(out.read_text()) if out.exists() else {}


def figure(found: dict[str, Any], path: tuple[str, ...]) -> float | None:
    at: Any = found
    for key in path:
        at = at.get(key) if isinstance(at, dict) else None
    return at["median"] if isinstance(at, dict) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--upstream", metavar="CMD", help="another dsh to measure in the same run")
    options = parser.parse_args()
    if not (BENCH / "headless_bench.py").exists():
        print("skipped: no headless_bench.py; name its folder with DSH_BENCH")
        return
    ours = measure(str(Path(sys.executable).parent / "dsh"), options.runs, "--no-json")
    theirs = measure(options.upstream, options.runs) if options.upstream else {}
    rows = [["figure", "dsh", "aim", "upstream", "ratio"]]
    for name, path, aim in FIGURES:
        mine, other = figure(ours, path), figure(theirs, path)
        ratio = f"{other / mine:.1f}x" if mine and other else ""
        rows.append(
            [
                name,
                f"{mine}" if mine is not None else "-",
                aim,
                f"{other}" if other is not None else "",
                ratio,
            ]
        )
    table(rows)


if __name__ == "__main__":
    main()
