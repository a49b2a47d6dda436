"""Processes on one folder, closed after the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from projection_support import Process


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Process]]]:
    """Open a process on the folder of the test."""
    opened: list[Process] = []

    async def begin(**config: Any) -> Process:
        process = await Process(tmp_path, **config).open()
        opened.append(process)
        return process

    yield begin
    for process in opened:
        await process.close()


@pytest.fixture
async def process(start: Callable[..., Awaitable[Process]]) -> Process:
    return await start()
