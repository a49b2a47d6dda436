"""Entry when Python runs this file, or its folder, by path; see `launcher` for the command line."""

import importlib
import os
import sys


def main() -> int:
    """Import this folder as a package of its own, without importing dsh, and run it."""
    parent, package = os.path.split(os.path.dirname(os.path.realpath(__file__)))
    sys.path.append(parent)
    launcher = importlib.import_module(f"{package}.launcher")
    status: int = launcher.main(sys.argv[1:])
    return status


if __name__ == "__main__":
    sys.exit(main())
