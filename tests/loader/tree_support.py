"""What the tests of the live tree share: trees in folders, and waiting for files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsh.kernel import Context
from dsh.loader.loader import Loader, folder_url

GROUP = {"name": "cordis:group", "group": True}


def group(id: str, *rows: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A row that holds rows."""
    return {"id": id, **GROUP, "config": list(rows), **fields}


def include(id: str, path: object, **config: Any) -> dict[str, Any]:
    """A row that includes a file."""
    return {"id": id, "name": "cordis:include", "config": {"path": str(path), **config}}


async def loader_in(
    root: Context, folder: Path, report: Callable[..., None] = lambda *_: None
) -> Loader:
    """A loader whose tree has a folder; contained errors go to a function."""
    root.set_reporter(report)
    await root.extend(base_url=folder_url(folder)).plugin(Loader)
    return root.require(Loader)


async def wait_until(
    happened: Callable[[], object], what: str = "it", seconds: float = 5.0
) -> None:
    """Wait for something outside of the event loop, such as a file."""
    async with asyncio.timeout(seconds):
        while not happened():  # noqa: ASYNC110  # files and processes tell nobody
            await asyncio.sleep(0.005)


def names_in(folder: Path) -> list[str]:
    """What is in a folder."""
    return sorted(each.name for each in folder.iterdir())


def fibers(loader: Loader) -> dict[str, Any]:
    """The fiber of each row."""
    return {entry.full_id: entry.fiber for entry in loader.entries()}
