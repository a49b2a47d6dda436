"""Fixtures of the kernel's tests."""

from __future__ import annotations

import pytest
from kernel_support import Reports

from dsh.kernel import Context


@pytest.fixture
def reports(root: Context) -> Reports:
    """Collects what the root contains instead of logging it."""
    found = Reports()
    root.set_reporter(found)
    return found


@pytest.fixture
def log() -> list[object]:
    """What a test's plugins write down."""
    return []
