"""Every test runs under the task census of `dsh.testing`."""

from __future__ import annotations

pytest_plugins = ["dsh.testing.plugin"]
