"""A process is killed while it writes: the file is always one whole version of the records."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

WRITER = Path(__file__).parent / "record_writer.py"
ROUNDS = 6


@pytest.mark.slow
def test_a_file_is_one_whole_version_whenever_its_writer_dies(tmp_path: Path) -> None:
    for rounds in range(ROUNDS):
        command = [sys.executable, str(WRITER), str(tmp_path)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(5 + rounds * 7)]
        child.kill()
        said += child.stdout.readlines()
        child.wait()
        child.stdout.close()
        returned = int([line for line in said if line.endswith("\n")][-1])

        document = json.loads((tmp_path / "notes.json").read_bytes())
        assert document["unit"] == {"name": "notes", "version": 1}
        numbers = sorted(map(int, document["tables"]["items"]))
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert len(numbers) in range(5, 7)
        # What was acknowledged is there; at most the write under way is there as well.
        assert numbers[-1] in (returned, returned + 1)
