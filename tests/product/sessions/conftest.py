"""A home of sessions."""

from __future__ import annotations

from pathlib import Path

import pytest
from sessions_home import SessionsHome


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> SessionsHome:
    monkeypatch.setenv("DSH_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return SessionsHome(tmp_path / "home", capsys)
