from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsh.base.files import FileLock
from dsh.state.documents import DocumentFile
from dsh.state.documents.live import enter_in_thread


async def test_an_error_inside_reaches_the_manager_and_the_caller() -> None:
    seen: list[str] = []

    @contextmanager
    def manager() -> Iterator[int]:
        try:
            yield 5
        except RuntimeError as error:
            seen.append(str(error))
            raise

    async def fail() -> None:
        async with enter_in_thread(manager()) as value:
            raise RuntimeError(f"inside {value}")

    with pytest.raises(RuntimeError, match="inside 5"):
        await fail()
    assert seen == ["inside 5"]


async def test_who_gives_up_waiting_for_a_lock_does_not_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    file = DocumentFile(path, what="document", lock_s=10)

    async def write() -> None:
        async with enter_in_thread(file.draft()):
            pytest.fail("it was entered")

    with FileLock(path.with_name("a.yaml.write")):
        task = asyncio.create_task(write())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    with file.draft() as draft:
        draft.write({"a": 1})
    assert file.read() == {"a": 1}
