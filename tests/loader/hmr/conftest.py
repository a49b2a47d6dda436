from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hmr_support import Workshop

from dsh.kernel import Context


@pytest.fixture
def workshop(root: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    monkeypatch.syspath_prepend(tmp_path)
    made = Workshop(root, tmp_path)
    try:
        yield made
    finally:
        made.forget()
