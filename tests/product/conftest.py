"""Puts this folder on the path, so that its folders share `product_support`."""

from __future__ import annotations

from pathlib import Path

import pytest
from product_support import Person


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)
