"""Entry of the folder when Python runs it by path; see `launcher` for the command line."""

import importlib
import sys
from pathlib import Path


def main() -> int:
    """Import this folder as a package of its own, without importing dsh, and run it."""
    here = Path(__file__).resolve().parent
    sys.path.append(str(here.parent))
    launcher = importlib.import_module(f"{here.name}.launcher")
    status: int = launcher.main(sys.argv[1:])
    return status


if __name__ == "__main__":
    sys.exit(main())
