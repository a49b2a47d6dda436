"""The headless app: one task in, one answer out, for scripts and CI."""

from __future__ import annotations

from dsh.product.headless.options import HeadlessStartup, OutputFormat

__all__ = ["HeadlessStartup", "OutputFormat"]
