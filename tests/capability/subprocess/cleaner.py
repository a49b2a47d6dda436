"""Print the pid, then wait for SIGTERM, and take it as the word to clean up."""

from __future__ import annotations

import os
import signal
import sys


def clean(*_: object) -> None:
    print("cleaned", flush=True)
    sys.exit(5)


signal.signal(signal.SIGTERM, clean)
print(os.getpid(), flush=True)
while True:
    signal.pause()
