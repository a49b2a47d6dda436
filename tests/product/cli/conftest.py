from __future__ import annotations

from pathlib import Path

import pytest
from cli_support import Command


@pytest.fixture
def dsh(tmp_path: Path) -> Command:
    return Command(tmp_path)
