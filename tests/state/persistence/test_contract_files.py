"""The file store passes what every store must."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsh.state.persistence.artifact.layout import find_artifact
from dsh.testing.persistence.contract import Medium, PersistenceContract


def file_medium(root: Path, **config: Any) -> Medium:
    def artifact(id: str) -> Path:
        path = find_artifact(root, id)
        assert path is not None
        return path

    def tear(id: str) -> None:
        with artifact(id).open("ab") as file:
            file.write(b"\x28\xb5\x2f\xfd\x04" if "zstd" in file.name else b'{"type":"turn/')

    def spoil(id: str) -> None:
        path = artifact(id)
        data = bytearray(path.read_bytes())
        at = len(data) // 2 if path.suffix == ".zstd" else data.index(b'"question 1"')
        data[at] ^= 0x55
        path.write_bytes(data)

    plugin = "dsh.state.persistence.jsonl:JsonlPersistence"
    return Medium(plugin, {"root": str(root), **config}, tear, spoil)


class TestZstdFiles(PersistenceContract):
    @pytest.fixture
    def medium(self, tmp_path: Path) -> Medium:
        return file_medium(tmp_path / "sessions", compression="zstd")


class TestPlainFiles(PersistenceContract):
    @pytest.fixture
    def medium(self, tmp_path: Path) -> Medium:
        return file_medium(tmp_path / "sessions", compression="none")


class TestPlainFilesOfOneEventALine(PersistenceContract):
    @pytest.fixture
    def medium(self, tmp_path: Path) -> Medium:
        return file_medium(tmp_path / "sessions", compression="none", packChunks=False)
