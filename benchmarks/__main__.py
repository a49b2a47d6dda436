"""Run every benchmark one after the other, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ORDER = (
    "startup",
    "kernel",
    "loader",
    "log",
    "resume",
    "search",
    "sessions",
    "loop",
    "agents",
    "tools",
    "headless",
)


def main(names: list[str]) -> int:
    failed = []
    for name in names or ORDER:
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, HERE / f"{name}.py"], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
