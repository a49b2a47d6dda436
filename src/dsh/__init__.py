"""dsh: an agent harness in which everything is a plugin."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
