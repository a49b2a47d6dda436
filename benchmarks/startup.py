"""Start-up of the command line against a bare interpreter, alternating in one run."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from report import Sample, median_of, run_once, table

CASES: dict[str, tuple[list[str], float]] = {
    "--version": (["--version"], 3),
    "--help": (["--help"], 3),
    "--dump-config headless": (["--profile", "headless", "--dump-config"], 12),
    "--dump-config web": (["--profile", "web", "--dump-config"], 12),
    "headless --help": (["--profile", "headless", "--help"], 12),
    "headless, a task of one step": (
        ["--profile", "headless", "--patch", "rehearsal.json", "--", "say a word"],
        45,
    ),
}
REHEARSAL = [
    {"id": "agent-default-model", "config": {"provider": "rehearsal", "model": "m"}},
    {
        "insert": [
            {
                "id": "llm-rehearsal",
                "name": "dsh.model.adapters.rehearsal",
                "config": {"script": "script.json"},
            }
        ]
    },
]
"""A patch that lets a script play the model, so that a task needs neither key nor network."""


def measure(runs: int) -> tuple[Sample, dict[str, Sample]]:
    dsh = str(Path(sys.executable).parent / "dsh")
    with tempfile.TemporaryDirectory() as home, contextlib.chdir(home):
        env = {**os.environ, "DSH_HOME": home}
        Path("script.json").write_text(json.dumps({"replies": [{"text": "done"}]}))
        Path("rehearsal.json").write_text(json.dumps(REHEARSAL))
        for argv, _ in CASES.values():
            run_once([dsh, *argv], env)
        bare: list[Sample] = []
        found: dict[str, list[Sample]] = {name: [] for name in CASES}
        for _ in range(runs):
            bare.append(run_once([sys.executable, "-c", "pass"], env))
            for name, (argv, _) in CASES.items():
                found[name].append(run_once([dsh, *argv], env))
    return median_of(bare), {name: median_of(samples) for name, samples in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    bare, found = measure(options.runs)
    if options.json:
        print(
            json.dumps(
                {name: round(sample.wall_ms / bare.wall_ms, 2) for name, sample in found.items()}
            )
        )
        return
    rows = [["command", "wall ms", "cpu ms", "peak MB", "x bare", "aim"]]
    rows.append(
        [
            "python -c pass",
            f"{bare.wall_ms:.1f}",
            f"{bare.cpu_ms:.1f}",
            f"{bare.peak_mb:.0f}",
            "1.0",
            "",
        ]
    )
    for name, sample in found.items():
        ratio = sample.wall_ms / bare.wall_ms
        cells = [
            f"{sample.wall_ms:.1f}",
            f"{sample.cpu_ms:.1f}",
            f"{sample.peak_mb:.0f}",
            f"{ratio:.1f}",
        ]
        rows.append([f"dsh {name}", *cells, f"<= {CASES[name][1]:g}"])
    table(rows)


if __name__ == "__main__":
    main()
