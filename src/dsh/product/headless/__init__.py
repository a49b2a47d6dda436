"""The headless app: one task in, one answer out, for scripts and CI."""

from __future__ import annotations

from dsh.product.headless.service import HEADLESS_STARTUP, HeadlessStartup, OutputFormat

__all__ = ["HEADLESS_STARTUP", "HeadlessStartup", "OutputFormat"]
