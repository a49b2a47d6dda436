"""The service ``headless_startup``: what the headless command line asks for."""

from __future__ import annotations

from dsh.kernel import ServiceKey
from dsh.product.headless.options import HeadlessStartup

HEADLESS_STARTUP = ServiceKey[HeadlessStartup]("headless_startup")
"""Published by the row ``headless-startup``; the runner waits for it."""
