"""Entry when Python runs this folder by path; the argument is the descriptor to talk over."""

import importlib
import os
import sys


def main() -> None:
    """Import this folder as a package of its own, without importing dsh, and run it."""
    parent, package = os.path.split(os.path.dirname(os.path.realpath(__file__)))
    sys.path.append(parent)
    running = importlib.import_module(f"{package}.running")
    # What the program imports is the standard library, and nothing of ours by accident.
    sys.path.remove(parent)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    running.main(int(sys.argv[1]))


if __name__ == "__main__":
    main()
